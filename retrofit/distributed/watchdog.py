"""When a rank never comes to a collective, every rank shows where it is, and the job ends.

The ranks that wait in the collective learn of it when `--dist_timeout` is over; the one that does not come learns
nothing by itself. So each rank of a group of several has a thread that looks into the group's store every few seconds
(a twentieth of the timeout, at most 5 s). A rank whose collective ran out of time says so there; then every thread
prints its process's stacks and the step, and ends the process if it has not ended 5 s later.

Only a collective that ran out of time counts. However long a rank validates, saves or loads, nothing happens unless
another rank has waited for it that long, which ended the job without this thread, too: give such a job a longer
`--dist_timeout`. Over NCCL a collective of GPU tensors does not raise an error but ends its process; then NCCL's own
message stands in place of this one.
"""

from __future__ import annotations

import atexit
import os
import re
import sys
import threading
import time
import traceback
from typing import Any

# What gloo, NCCL, the store and require_every_rank say; a loader or a download that times out is another matter.
TIMED_OUT = re.compile(
    r"Timed out waiting \d+ ?ms|monitoredBarrier|collective operation timeout|[Ww]ait timeout after \d+ ?ms|"
    r"was called by rank \d+, but not by rank"
)
NOTICED_KEY = "retrofit/hang/noticed"  # how many ranks' collectives ran out of time
SHOWN_KEY = "retrofit/hang/shown"  # how many ranks have shown where they are
MAX_PERIOD_S = 5.0
GRACE_S = 5.0  # between what a rank shows and its end: an error of its own, and the other ranks, get their chance
NOTICE_S = 2.0  # between a timeout on one rank and the loss of its connections on another: milliseconds

_step = "before the first step"
_watchdog: Watchdog | None = None


def begin_step(step: str) -> None:
    """Note which step this rank is in, as in "step 7 of epoch 2": a rank that hangs prints it."""
    global _step
    _step = step


def start_watchdog(store: Any, rank: int, world_size: int, timeout_s: float) -> None:
    """Watch this process of a group of several until `stop_watchdog`; `store` is the group's."""
    global _watchdog
    stop_watchdog()
    _watchdog = Watchdog(store, rank, world_size, timeout_s)
    atexit.register(stop_watchdog)  # a thread must not be in the store when the interpreter goes


def stop_watchdog() -> None:
    """End the thread, if there is one."""
    global _watchdog
    if _watchdog is not None:
        atexit.unregister(stop_watchdog)
        _watchdog.stop()
    _watchdog = None


def is_hang(error: BaseException, *, wait: bool = False) -> bool:
    """Return whether `error` ends this process because a rank did not come to a collective.

    That is so if a collective ran out of time, here, which the other ranks are told, or on another rank. `wait` for
    such news a moment: what a rank sees of a timeout elsewhere is that it has lost its connections.
    """
    if _watchdog is None:
        return False
    return _watchdog.notice(isinstance(error, RuntimeError) and TIMED_OUT.search(str(error)) is not None, wait)


def wait_until_shown() -> list[str]:
    """Wait until every rank has shown where it is, this one included; return what to say of those that did not."""
    return [] if _watchdog is None else _watchdog.wait_until_shown()


def current_step() -> str:
    """Return where this rank is, as `begin_step` was told."""
    return _step


class Watchdog:
    """The thread of one rank and what it shares with the main thread."""

    def __init__(self, store: Any, rank: int, world_size: int, timeout_s: float) -> None:
        # A connection of its own: a main thread that waits in the store would keep this one out.
        self._store = store.clone() if hasattr(store, "clone") else store
        self._mark, self._world_size = f"[rank {rank}/{world_size}]", world_size
        self._period_s = min(MAX_PERIOD_S, max(0.1, timeout_s / 20))
        self._stopped, self._shown = threading.Event(), threading.Lock()
        self._thread = threading.Thread(target=self._watch, name="retrofit-watchdog", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        if self._thread is not threading.current_thread():
            self._thread.join(GRACE_S)

    def notice(self, timed_out: bool, wait: bool) -> bool:
        """Tell the other ranks of a timeout, or ask whether one was told; from here on the main thread shows itself."""
        deadline = time.monotonic() + NOTICE_S
        try:
            hang = self._store.add(NOTICED_KEY, int(timed_out)) > 0
            while wait and not hang and time.monotonic() < deadline:
                time.sleep(0.1)
                hang = self._store.add(NOTICED_KEY, 0) > 0
        except Exception:  # the store went with the process that it lived in
            hang = timed_out
        if hang and self._shown.acquire(blocking=False):
            self._count_shown()
        return hang

    def wait_until_shown(self) -> list[str]:
        deadline = time.monotonic() + 2 * self._period_s + NOTICE_S
        shown = 0
        try:
            while (shown := self._store.add(SHOWN_KEY, 0)) < self._world_size and time.monotonic() < deadline:
                time.sleep(0.05)
        except Exception:
            return ["the store of the group is gone, and with it the process of the first rank"]
        silent = self._world_size - shown
        return [f"{silent} rank(s) did not say where they are: gone, stopped, or in code that holds the GIL"][:silent]

    def _watch(self) -> None:
        while not self._stopped.wait(self._period_s):
            try:
                hang = self._store.add(NOTICED_KEY, 0) > 0
            except Exception:
                return
            if hang:
                self._show_and_end()
                return

    def _show_and_end(self) -> None:
        if self._shown.acquire(blocking=False):
            lines = [f"a collective ran out of time on another rank; this one is in {_step}, here:", *_stacks()]
            print("\n" + "\n".join(f"{self._mark} {line}" for line in lines), file=sys.stderr, flush=True)
            self._count_shown()
        if not self._stopped.wait(GRACE_S + 2 * self._period_s):
            sys.stdout.flush()
            os._exit(1)

    def _count_shown(self) -> None:
        try:
            self._store.add(SHOWN_KEY, 1)
        except Exception:  # nobody is left who would ask
            return


def _stacks() -> list[str]:
    """Return the lines of the Python stacks of this process's threads, the main thread's first, without this one."""
    frames, main = sys._current_frames(), threading.main_thread()
    threads = [main, *(thread for thread in threading.enumerate() if thread is not main)]
    lines: list[str] = []
    for thread in threads:
        if thread is not threading.current_thread() and thread.ident in frames:
            lines.append(f"{thread.name} (most recent call last):")
            lines += "".join(traceback.format_stack(frames[thread.ident])).splitlines()
    return lines
