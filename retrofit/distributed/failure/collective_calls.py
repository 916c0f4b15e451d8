"""The journal of a rank's runtime collectives: which one it is in, where it was called, and which came before.

The main thread writes it (10 to 20 us a call), the watchdog's thread reads it. A collective that every rank calls has
the same number on every rank; between two of them the process group's own counters say how many collectives of torch
(of DDP's gradients, say) a rank has begun.
"""

from __future__ import annotations

import functools
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, NamedTuple, TypeVar

Decorated = TypeVar("Decorated", bound=Callable[..., Any])
PACKAGE = __name__.removesuffix(".failure.collective_calls")  # the runtime, or the one module that it became
LIBRARIES = ("contextlib", "functools", "torch")  # what a call may pass through on its way from the script

turns: list[Any] = []  # of `main_process_first`: the one that this rank is in
before_collectives: list[Callable[[str], Any]] = []  # what other modules add: called with the function's name
_journal: Journal | None = None


class Call(NamedTuple):
    """One call of a runtime collective, the outermost if one calls another."""

    number: int
    name: str
    site: str  # FILE:LINE of the script
    begun: tuple[int, ...]  # collectives of torch that this rank has begun since the call before


class Journal:
    """The calls of the thread that makes it; `counters` returns how many collectives it has begun in each group."""

    def __init__(self, counters: Callable[[], tuple[int, ...]]) -> None:
        self.calls: deque[Call] = deque(maxlen=16)
        self.open: Call | None = None
        self.opened_at = 0.0
        self.finished = 0  # calls
        self.thread = threading.get_ident()
        self._counters = counters
        self._after_last = counters()

    def begun(self) -> tuple[int, ...]:
        """Return how many collectives of torch this rank has begun since its last runtime collective."""
        return tuple(now - before for now, before in zip(self._counters(), self._after_last))

    @contextmanager
    def noting(self, function: str) -> Iterator[None]:
        """Note the call of a collective, from its begin to its end."""
        name, frame = called_from(sys._getframe(3))
        call = Call(self.finished, name or function, f"{frame.f_code.co_filename}:{frame.f_lineno}", self.begun())
        self.calls.append(call)
        self.opened_at = time.monotonic()
        self.open = call
        try:
            yield
        finally:
            self._after_last = self._counters()
            self.finished += 1
            self.open = None


def start_journal(counters: Callable[[], tuple[int, ...]]) -> Journal:
    """Keep a journal from now on; see `Journal`."""
    global _journal
    _journal = Journal(counters)
    return _journal


def stop_journal() -> None:
    """Keep no journal any more."""
    global _journal
    _journal = None


def collective(function: Decorated) -> Decorated:
    """Decorate a function that every rank must call, so that a rank which waits in it can be told why."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if turns:
            raise RuntimeError(
                f"{function.__name__} is called inside `with main_process_first():`, where the ranks run one after "
                "another: it would wait for ranks that cannot come; call it before or after that block"
            )
        journal = _journal
        is_within = journal is not None and (journal.open is not None or journal.thread != threading.get_ident())
        for hook in () if is_within else before_collectives:
            hook(function.__name__)
        if journal is None or is_within:
            return function(*args, **kwargs)
        with journal.noting(function.__name__):
            return function(*args, **kwargs)

    return call  # type: ignore[return-value]


def called_from(frame: FrameType) -> tuple[str, FrameType]:
    """Return the runtime function that the script called, and the script's frame that called it."""
    name, inner = "", frame
    for inner, _ in traceback.walk_stack(frame):
        module = inner.f_globals.get("__name__", "")
        if f"{module}.".startswith(f"{PACKAGE}."):
            name = inner.f_code.co_name
        elif module.partition(".")[0] not in LIBRARIES:
            break
    return name, inner
