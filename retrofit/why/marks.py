"""Marks: the moments that a process notes while it trains, and the file that they are written to.

A mark is the begin or the end of something (`data`, `backward`, ...), or a single moment. Nothing is computed while the
script runs: one append for each mark, and what they mean is found out afterwards (`retrofit.why.analysis`).
"""

from __future__ import annotations

import json
import os
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
    cpu: float  # seconds for which the thread has had a core so far
    value: float = 0.0  # bytes of a bucket, samples of a batch


class Marks:
    """The marks of the main thread, in order. Those of other threads (prefetchers, loggers) cost the step nothing."""

    def __init__(self) -> None:
        self._thread = threading.main_thread().ident
        self.found: list[Mark] = []
        self.is_on = True  # else nothing is noted

    def add(self, kind: str, name: str, value: float = 0.0) -> None:
        """Note a moment of the main thread; other threads note nothing."""
        if self.is_on and threading.get_ident() == self._thread:
            self.found.append(Mark(kind, name, time.perf_counter(), time.thread_time(), value))

    def add_of_any_thread(self, name: str, value: float = 0.0) -> None:
        """Note a moment that another thread tells, such as the end of a bucket's all-reduce."""
        if self.is_on:
            self.found.append(Mark(MOMENT, name, time.perf_counter(), 0.0, value))

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
