"""Marks: the moments that a process notes while it trains, and the file that they are written to.

A mark is the begin or the end of something (`data`, `backward`, ...), or a single moment. Nothing is computed while the
script runs: one append for each mark, and what they mean is found out afterwards (`retrofit.why.analysis`).
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

BEGIN, END, MOMENT = "<", ">", "."


class Mark(NamedTuple):
    """One moment. `seconds`: on the monotonic clock of the machine, which all of its processes share."""

    kind: str  # BEGIN, END or MOMENT
    name: str  # "backward"
    seconds: float
    value: float = 0.0  # bytes of a bucket, samples of a batch


class DeviceClock:
    """Events in the queue of this process's GPU, and their moments on the host's clock."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._events: list[Any] = []
        torch.cuda.synchronize()
        self._start, self._first = time.perf_counter(), self._event()

    @classmethod
    def of_this_process(cls) -> DeviceClock | None:
        """Return the clock of the GPU that is in use, None without one."""
        torch = sys.modules.get("torch")
        is_used = torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized()
        return cls(torch) if is_used else None

    def note(self) -> None:
        self._events.append(self._event())

    def seconds(self) -> list[float]:
        """Return when the queue came to each event, in seconds on the host's clock. Waits for the queue."""
        self._torch.cuda.synchronize()
        return [self._start + self._first.elapsed_time(event) / 1e3 for event in self._events]

    def _event(self) -> Any:
        event = self._torch.cuda.Event(enable_timing=True)
        event.record()
        return event


def _is_of_torch() -> bool:
    """Return whether this thread was started outside of Python, as those of torch's backward passes are."""
    return isinstance(threading.current_thread(), threading._DummyThread)


class Marks:
    """The marks of the main thread, in order. Those of other threads (prefetchers, loggers) cost the step nothing.

    With a GPU, work is given to it long before it is done. Then a mark is an event in its queue, and its time is when
    the queue comes to it: two of them are as far apart as the step loses there. `begin` and `settle` wait for it.
    """

    def __init__(self) -> None:
        self._thread = threading.main_thread().ident
        self._clock: DeviceClock | None = None
        self._lock = threading.Lock()
        self.found: list[Mark] = []
        self.is_on = True  # else nothing is noted

    def begin(self) -> None:
        """Forget what was noted, and note from now on."""
        self.found, self.is_on = [], True
        self._clock = DeviceClock.of_this_process()

    def add(self, kind: str, name: str, value: float = 0.0) -> None:
        """Note a moment of the main thread, or of the thread in which torch runs a backward pass on a GPU."""
        if self.is_on and (threading.get_ident() == self._thread or _is_of_torch()):
            self._append(Mark(kind, name, time.perf_counter(), value))

    def add_of_any_thread(self, name: str, value: float = 0.0) -> None:
        """Note a moment that another thread tells, such as the end of a bucket's all-reduce."""
        if self.is_on:
            self._append(Mark(MOMENT, name, time.perf_counter(), value))

    def settle(self) -> None:
        """Note no more, and give the marks of a GPU's queue their times: waits for the GPU, once."""
        self.is_on = False
        if self._clock is not None:
            seconds = self._clock.seconds()
            self.found = [mark._replace(seconds=at) for mark, at in zip(self.found, seconds)]
            self._clock = None

    def _append(self, mark: Mark) -> None:
        with self._lock:  # a mark and its event have the same place
            self.found.append(mark)
            if self._clock is not None:
                self._clock.note()

    @contextmanager
    def during(self, name: str, value: float = 0.0) -> Iterator[None]:
        """Mark the begin and the end of a block."""
        self.add(BEGIN, name, value)
        try:
            yield
        finally:
            self.add(END, name, value)

    def write(self, path: Path, facts: dict[str, Any]) -> None:
        """Write the marks, and `facts` about the process, as JSON; a reader finds the whole file or none."""
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(".part")
        unfinished.write_text(json.dumps({**facts, "marks": self.found}), encoding="utf-8")
        os.replace(unfinished, path)


def read_marks(path: Path) -> tuple[dict[str, Any], list[Mark]]:
    """Return the facts and the marks of a file of `write`. Raises OSError where there is none."""
    content = json.loads(path.read_text(encoding="utf-8"))
    return content, [Mark(*mark) for mark in content.pop("marks")]
