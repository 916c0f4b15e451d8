"""The trace file of one rank: a line per event, in the order in which things happened."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from .events import Event, line_of


class Recorder:
    """Appends events to a file, each written out at once, so that a killed process leaves all but its last moment."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = open(path, "w", encoding="utf-8")  # noqa: SIM115 - open as long as the process lives
        self._lock = threading.RLock()  # a CUDA backward runs in a thread of its own
        self._started = time.perf_counter()
        self.step = 0  # optimizer steps finished

    def record(self, event: Event) -> None:
        """Append an event. After `close` nothing is recorded."""
        line = line_of(event, round(time.perf_counter() - self._started, 4), self.step)
        with self._lock:
            if not self._file.closed:
                self._file.write(line)
                self._file.flush()

    def close(self) -> None:
        with self._lock:
            self._file.close()
