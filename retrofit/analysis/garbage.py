"""Python's search for garbage, which takes half of the time in large projects and finds none."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_garbage_search() -> Iterator[None]:
    """Switch the search off: trees, scopes and values stay until the end, and it goes through all of them each time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
