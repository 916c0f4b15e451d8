"""Files of the project that the script reads, for other processes that may be writing them."""

from __future__ import annotations

import functools
import os
import time
from collections import Counter
from typing import Any

from retrofit.verify.trace.events import FileRead, Record
from retrofit.verify.trace.output.place import place_of_caller
from retrofit.verify.trace.randomness.streams import in_main_thread

from .files import FileTrace
from .own_work import own_work

PROGRAMS = (".py", ".pyc", ".so")
BEFORE_S = 60.0  # a file that is older was there before the run
MOST = 50  # reads of one file


def install_reads(record: Record, files: FileTrace, project: str) -> None:
    """Record a FileRead for each file of the project that is opened to be read and was written lately."""
    start, counts, root = time.time() - BEFORE_S, Counter[str](), os.path.join(os.path.realpath(project), "")
    waited = False
    sleep = time.sleep

    @functools.wraps(sleep)
    def traced_sleep(seconds: Any) -> None:
        nonlocal waited
        waited = waited or in_main_thread()
        sleep(seconds)

    def on_lock() -> None:
        nonlocal waited
        waited = True

    def on_read(path: Any) -> None:
        if not isinstance(path, str) or path.endswith(PROGRAMS):
            return
        place = files.place(path)
        if not place.startswith(root) or counts[place] >= MOST:
            return
        counts[place] += 1
        with own_work():
            name = files.name(path)
            if name is not None and os.stat(place).st_mtime >= start:
                record(FileRead(name, place_of_caller(project), waited))

    time.sleep = traced_sleep  # type: ignore[assignment]
    files.on_lock, files.on_read = on_lock, on_read
