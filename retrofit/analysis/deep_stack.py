"""Room for recursion: expressions nest, and assignments follow each other, deeper than Python's usual limit."""

from __future__ import annotations

import ast
import sys
import threading
from collections.abc import Callable
from types import TracebackType
from typing import TypeVar

from .files.source import Source
from .scopes import Scope

# Bytes of the stack, and calls that fit into it with room to spare; a small machine may refuse the first.
SIZES = ((512 * 2**20, 60_000), (64 * 2**20, 8_000))
T = TypeVar("T")


class TooDeepError(ValueError):
    """The code nests deeper than even a large stack holds. The message says where."""


def with_deep_stack(function: Callable[[], T]) -> T:
    """Call `function` in a thread with a large stack and return its result, or raise what it raises.

    Ctrl-C ends the waiting, not the function: it may not write. Raises TooDeepError where the stack is not enough.
    """
    results: list[T] = []
    errors: list[BaseException] = []

    def call() -> None:
        try:
            results.append(function())
        except (RecursionError, MemoryError) as error:
            place = place_read_last(error.__traceback__)
            text = f"{place}nested or chained too deeply to be read; split the expression, or leave out assignments"
            errors.append(TooDeepError(text))
        except BaseException as error:
            errors.append(error)

    limit = sys.getrecursionlimit()
    try:
        _start(call).join()
    finally:
        sys.setrecursionlimit(limit)
    if errors:
        raise errors[0]
    return results[0]


def _start(call: Callable[[], None]) -> threading.Thread:
    usual = threading.stack_size()
    try:
        for size, calls in SIZES:
            thread = threading.Thread(target=call, daemon=True)
            threading.stack_size(size)
            sys.setrecursionlimit(max(calls, sys.getrecursionlimit()))
            try:
                thread.start()
            except RuntimeError:  # no memory for it
                sys.setrecursionlimit(SIZES[-1][1])
                continue
            return thread
    finally:
        threading.stack_size(usual)
    raise TooDeepError("no memory for a stack of 64 MiB; raise the limit of memory (ulimit -v)")


def place_read_last(trace: TracebackType | None) -> str:
    """Return the place of the code that was read last, as "train.py:12: "; nothing where that cannot be told."""
    place = ""
    while trace is not None:
        found = trace.tb_frame.f_locals.values()
        sources = [value.source if isinstance(value, Scope) else value for value in found if _is_of_file(value)]
        nodes = [value for value in found if isinstance(value, (ast.expr, ast.stmt))]
        if sources and nodes:
            place = f"{sources[0].name}:{nodes[0].lineno}: "
        trace = trace.tb_next
    return place


def _is_of_file(value: object) -> bool:
    return isinstance(value, (Scope, Source))
