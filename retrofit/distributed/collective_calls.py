"""The journal of a rank's runtime collectives: which one it is in, where it was called, and which came before.

The main thread writes it (10 to 20 us a call), the watchdog's thread reads it (watchdog.py). Collectives called by
every rank have the same number on every rank; between two of them, the process group's own counters say how many
collectives of torch (DDP's gradients, say) a rank has begun.
"""

from __future__ import annotations

import functools
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])
PACKAGE = __name__.rpartition(".")[0]
LIBRARIES = ("contextlib", "functools", "torch")  # what a call may pass through on its way from the script
KEPT = 64  # calls that the journal remembers

_journal: Journal | None = None
_turn: Turn | None = None  # the ranks run one after another: a collective would wait forever


@dataclass(frozen=True)
class Call:
    """One call of a runtime collective, the outermost if one calls another."""

    number: int
    name: str
    code: CodeType  # of the script's function that calls it
    line: int
    begun: tuple[int, ...]  # collectives of torch that this rank has begun since the call before

    @property
    def site(self) -> str:
        return f"{self.code.co_filename}:{self.line}"


class Journal:
    """The calls of one rank; `counters` returns how many collectives it has begun in each group."""

    def __init__(self, counters: Callable[[], tuple[int, ...]]) -> None:
        self.calls: deque[Call] = deque(maxlen=KEPT)
        self.open: Call | None = None
        self.opened_at = 0.0
        self.finished = 0  # calls
        self._thread = threading.get_ident()
        self._counters = counters
        self._after_last = counters()

    def is_for_this(self) -> bool:
        """Return whether a call that begins now is to be noted: by the main thread, and no part of another one."""
        return self.open is None and threading.get_ident() == self._thread

    def enter(self, function: str) -> Call:
        counters = self._counters()
        name, frame = called_from(sys._getframe(2))
        begun = tuple(now - before for now, before in zip(counters, self._after_last))
        call = Call(self.finished, name or function, frame.f_code, frame.f_lineno, begun)
        self.calls.append(call)
        self.opened_at = time.monotonic()
        self.open = call
        return call

    def leave(self) -> None:
        self._after_last = self._counters()
        self.finished += 1
        self.open = None

    def begun(self) -> tuple[int, ...]:
        """Return how many collectives of torch this rank has begun since its last runtime collective."""
        return tuple(now - before for now, before in zip(self._counters(), self._after_last))


def start_journal(counters: Callable[[], tuple[int, ...]]) -> Journal:
    """Keep a journal from now on; see `Journal`."""
    global _journal
    _journal = Journal(counters)
    return _journal


def stop_journal() -> None:
    global _journal
    _journal = None


def collective(function: F) -> F:
    """Decorate a function that every rank must call, so that a rank which waits in it can be told why."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if _turn is not None:
            raise RuntimeError(
                f"{function.__name__} is called inside `with rd.output.main_process_first():`, where the ranks run "
                "one after another: it would wait for ranks that cannot come; call it before or after that block"
            )
        journal = _journal
        if journal is None or not journal.is_for_this():
            return function(*args, **kwargs)
        journal.enter(function.__name__)
        try:
            return function(*args, **kwargs)
        finally:
            journal.leave()

    return call  # type: ignore[return-value]


@dataclass(frozen=True)
class Answer:
    """What rank 0 was answered. `question`: the function and its arguments; `failure`: what it raised, or ""."""

    question: str
    value: Any
    failure: str


@dataclass(frozen=True)
class Turn:
    """A block that the ranks run one after another; `answers` are those that rank 0 gets, in its order."""

    answers: list[Answer]
    is_of_main: bool

    def answer(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Return what rank 0 was answered at the same question; a rank that asks another one calls the function.

        Raises what the function raises; RuntimeError where it raised an error on rank 0.
        """
        name = getattr(function, "__qualname__", repr(function))
        question = f"{getattr(function, '__module__', '')}.{name}{args!r}{sorted(kwargs.items())!r}"
        if not self.is_of_main:
            known = next((answer for answer in self.answers if answer.question == question), None)
            if known is None:
                return function(*args, **kwargs)
            self.answers.remove(known)
            if known.failure:
                raise RuntimeError(known.failure)
            return known.value
        try:
            value = function(*args, **kwargs)
        except Exception as error:
            self.answers.append(Answer(question, None, failure_on_main(function, error)))
            raise
        self.answers.append(Answer(question, value, ""))
        return value


def failure_on_main(function: Callable[..., Any], error: Exception) -> str:
    """Return what the other ranks are told of an error of rank 0."""
    name = getattr(function, "__name__", str(function))
    return f"{name} failed on rank 0: {type(error).__name__}: {error}"


@contextmanager
def taking(turn: Turn) -> Iterator[None]:
    """Note that the ranks run a block one after another, so that a collective in it is an error and not a hang."""
    global _turn
    _turn = turn
    try:
        yield
    finally:
        _turn = None


def current_turn() -> Turn | None:
    """Return the block of `main_process_first` that this rank is in."""
    return _turn


def called_from(frame: FrameType | None) -> tuple[str, FrameType]:
    """Return the runtime function that the script called, and the script's frame that called it."""
    name, last = "", frame
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if module == PACKAGE or module.startswith(f"{PACKAGE}."):
            name = frame.f_code.co_name
        elif module.partition(".")[0] not in LIBRARIES:
            return name, frame
        last, frame = frame, frame.f_back
    assert last is not None
    return name, last
