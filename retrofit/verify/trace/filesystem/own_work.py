"""Mark file operations of the tracer itself, so that they are not recorded as the script's."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class _Mark(threading.local):
    is_set = False


_mark = _Mark()


@contextmanager
def own_work() -> Iterator[None]:
    """Leave what this thread does to files inside the block untraced."""
    before, _mark.is_set = _mark.is_set, True
    try:
        yield
    finally:
        _mark.is_set = before


def is_own_work() -> bool:
    return _mark.is_set
