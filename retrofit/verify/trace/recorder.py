"""The trace file of one rank: a line per event, in the order in which things happened, the tracer's own errors too."""

from __future__ import annotations

import os
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from retrofit.verify.trace import FOLDER

from .events import Event, ScriptError, TraceError, line_of

MOST_ERRORS = 10
# Errors of an operator or of a sample pass through these, and are the script's.
_PASSED_THROUGH = tuple(os.path.join(FOLDER, *path) for path in (("computation", "operators.py"), ("randomness", "")))
_SLIPS = (KeyError, AttributeError, NameError, AssertionError)  # which no operator and no draw raises


class Recorder:
    """Appends events to a file, each written out at once, so that a killed process leaves all but its last moment."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = open(path, "w", encoding="utf-8")  # noqa: SIM115 - open as long as the process lives
        self._lock = threading.RLock()  # a CUDA backward runs in a thread of its own
        self._started = time.perf_counter()
        self.step = 0  # optimizer steps finished
        self._failed: set[str] = set()  # places in the tracer
        _recorders[:] = [self]

    def record(self, event: Event) -> None:
        """Append an event. After `close` nothing is recorded."""
        line = line_of(event, round(time.perf_counter() - self._started, 4), self.step)
        with self._lock:
            if not self._file.closed:
                self._file.write(line)
                self._file.flush()

    def record_failure(self, error: BaseException) -> None:
        """Record an error of the tracer itself."""
        frames = traceback.extract_tb(error.__traceback__)
        own = [frame for frame in frames if frame.filename.startswith(FOLDER)] or frames
        where = f"{os.path.relpath(own[-1].filename, FOLDER)}:{own[-1].lineno} in {own[-1].name}" if own else "?"
        if where not in self._failed and len(self._failed) < MOST_ERRORS:
            self._failed.add(where)
            text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
            self.record(TraceError(ScriptError(type(error).__name__, str(error)[:2000], where, text[-4000:])))

    def close(self) -> None:
        with self._lock:
            self._file.close()


_recorders: list[Recorder] = []  # the one of this process


@contextmanager
def own_errors_recorded() -> Iterator[None]:
    """Let the script continue where the block, which is work of the tracer, fails; its error is recorded."""
    try:
        yield
    except Exception as error:
        record_failure(error)


def record_failure(error: BaseException) -> None:
    """Record an error of the tracer itself, if this process has a recorder."""
    for recorder in _recorders:
        recorder.record_failure(error)


def is_of_tracer(error: BaseException) -> bool:
    """Return whether an error was raised in the tracer itself, and not by what the script calls through it."""
    frames = traceback.extract_tb(error.__traceback__)
    place = frames[-1] if frames else None
    if place is None or not place.filename.startswith(FOLDER):
        return False
    if place.filename.startswith(_PASSED_THROUGH) and not isinstance(error, _SLIPS):
        return False
    return isinstance(error, Exception) and place.name not in ("_item", "<lambda>", "_call", "serve")
