"""Detect a run that hangs: no process computes and none records."""

from __future__ import annotations

from collections.abc import Mapping

CPU_SHARE = 0.02  # of one core; what the threads of an idle process group use is far below
CLOCK_TICK_S = 0.01  # the kernel's resolution of CPU times
SPIN_FACTOR = 6


class HangWatch:
    """Judges a run from repeated measurements of its ranks' CPU seconds and of the size of its trace files.

    Hung is a run whose ranks have neither used the CPU nor recorded anything for `idle_s`. After the end of a rank
    that ended well, `idle_s / 2` is enough: whoever waits for it waits in vain. NCCL keeps a core busy while it
    waits, and so several ranks that record nothing for `6 * idle_s` are hung although they use the CPU; one process
    alone has no other process to wait for.
    """

    def __init__(self, *, idle_s: float, world_size: int, now: float) -> None:
        self.idle_s = idle_s
        self.world_size = world_size
        self.interval_s = min(1.0, max(0.25, idle_s / 8))
        self._measured = self._worked = self._recorded = now
        self._cpu: dict[int, float] = {}
        self._trace_bytes = 0

    def is_due(self, now: float) -> bool:
        """Return whether the next measurement is worth its price."""
        return now - self._measured >= self.interval_s

    def measure(self, now: float, cpu_s: Mapping[int, float], trace_bytes: int) -> None:
        """Take in the CPU seconds of every live rank (children included) and the bytes of all trace files."""
        threshold = CPU_SHARE * (now - self._measured) + CLOCK_TICK_S / 2
        if any(seconds - self._cpu.get(rank, 0.0) > threshold for rank, seconds in cpu_s.items()):
            self._worked = now
        if trace_bytes != self._trace_bytes:
            self._worked = self._recorded = now
        self._measured, self._cpu, self._trace_bytes = now, dict(cpu_s), trace_bytes

    def is_hung(self, *, ended: float | None) -> bool:
        """Return the verdict as of the last measurement; `ended` is when the first rank ended, None if none has."""
        if self.world_size > 1 and self._measured - self._recorded >= SPIN_FACTOR * self.idle_s:
            return True
        if ended is not None and self._measured - max(self._worked, ended) >= self.idle_s / 2:
            return True
        return self._measured - self._worked >= self.idle_s
