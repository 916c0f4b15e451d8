"""The state of a rank, for the others: its step, the collective it waits in, and where its main thread is."""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback
from types import FrameType
from typing import Any

import torch

from ..collective_calls import Journal, called_from
from . import termination
from .process_identity import own_identity

# Where a main thread is that waits for another rank in torch's own code; a loader or a download is another matter.
WAITING_PLACES = ("torch.distributed", "torch.nn.parallel", "torch.autograd", "torch._tensor")
INSTALLED = ("<frozen", os.path.dirname(os.__file__), os.path.dirname(torch.__path__[0]))  # files of libraries
BUSY_SHARE = 0.2  # of the time that a thread which waits may compute, at most
TOLD_CALLS = 16

_step = "what precedes the first step"


def begin_step(step: str) -> None:
    """Note which step this rank is in, as in "step 7 of epoch 2": a rank that hangs says it."""
    global _step
    _step = step


def current_step() -> str:
    """Return where this rank is, as `begin_step` was told."""
    return _step


class RankState:
    """Looks at this process's main thread, from another thread, again and again."""

    def __init__(self, rank: int, journal: Journal) -> None:
        self._rank, self._journal = rank, journal
        self._main = threading.main_thread().ident
        self._seen: Any = None  # what did not change while the thread has been waiting
        self._since = self._cpu_s = 0.0
        self._beat = 0
        self.known: dict[str, Any] = {}  # what is told in place of what can be seen

    def look(self) -> dict[str, Any]:
        """Return what the other ranks shall know, in plain values: see deadlock.py for what each means."""
        now, begun = time.monotonic(), self._journal.begun()  # before the calls: a call is noted before it begins
        call, finished = self._journal.open, self._journal.finished
        frame = _without_handler(sys._current_frames().get(self._main or 0))
        waits_s = now - self._journal.opened_at if call is not None else 0.0
        self._beat += 1
        return {
            "rank": self._rank,
            "beat": self._beat,
            "step": _step,
            "process": own_identity(),
            "finished": finished,
            "open": None if call is None else call.number,
            "blocked_s": max(waits_s, self._blocked_s(frame, begun, now)),
            "begun": list(begun),
            "calls": [(c.number, c.name, c.site, list(c.begun)) for c in list(self._journal.calls)[-TOLD_CALLS:]],
            "where": "" if frame is None else place_of(frame),
            "left": "",
            **self.known,
        }

    def _blocked_s(self, frame: FrameType | None, begun: tuple[int, ...], now: float) -> float:
        """Return for how long the main thread has waited for other ranks in code of torch, as far as can be seen."""
        if frame is None:
            return 0.0
        seen, cpu_s = (id(frame), frame.f_lasti, begun), self._main_cpu_s()
        if seen != self._seen:
            self._seen, self._since, self._cpu_s = seen, now, cpu_s
            return 0.0
        module = frame.f_globals.get("__name__", "")
        waits = module.startswith(WAITING_PLACES) and cpu_s - self._cpu_s <= BUSY_SHARE * (now - self._since) + 0.1
        # On a GPU the thread waits, and computes, wherever it needs a result; what it waits for has been begun.
        return now - self._since if waits or (any(begun) and _uses_cuda()) else 0.0

    def _main_cpu_s(self) -> float:
        try:
            return time.clock_gettime(time.pthread_getcpuclockid(self._main or 0))
        except (AttributeError, OSError):  # not on every system
            return 0.0


def place_of(frame: FrameType) -> str:
    """Return where in the script a thread is: the innermost frame that is neither of the runtime nor of a library."""
    _, own = called_from(frame)
    inner: FrameType | None = own
    while inner is not None and inner.f_code.co_filename.startswith(INSTALLED):
        inner = inner.f_back
    own = inner or own
    return f"{own.f_code.co_name} ({own.f_code.co_filename}:{own.f_lineno})"


def place_of_error(error: BaseException) -> str:
    """Return where in the script an error was raised."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    return place_of(frames[-1]) if frames else "code without a traceback"


def stacks() -> list[str]:
    """Return the lines of the Python stacks of this process's threads, the main thread's first, without this one."""
    frames, main = sys._current_frames(), threading.main_thread()
    threads = [main, *(thread for thread in threading.enumerate() if thread is not main)]
    lines: list[str] = []
    for thread in threads:
        if thread is not threading.current_thread() and thread.ident in frames:
            lines.append(f"{thread.name} (most recent call last):")
            lines += "".join(traceback.format_stack(_without_handler(frames[thread.ident]))).splitlines()
    return lines


def _without_handler(frame: FrameType | None) -> FrameType | None:
    """Return where a thread was when a signal came, if it is in our handler, else where it is."""
    own, inner = frame, frame
    while inner is not None:
        if inner.f_globals.get("__name__") == termination.__name__:
            own = inner.f_back
        inner = inner.f_back
    return own


def _uses_cuda() -> bool:
    return torch.cuda.is_available() and torch.cuda.is_initialized()
