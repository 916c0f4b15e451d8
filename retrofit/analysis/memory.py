"""Answers to questions that depend on each other, each worked out once."""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Callable
from functools import wraps
from typing import Any, Generic, TypeVar, cast

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
LEAST_DEPTH, CALLS_PER_ANSWER = 80, 30  # questions that wait for each other; the calls that one needs, at most
MOST_ROUNDS = 3  # of working out one answer again because it depends on itself in part


def answered_once(function: F) -> F:
    """Let an object keep what a method of it, or a function about it, answers to each question.

    An answer that is worked out while a question to a Memory waits for it may lack a part: it is not kept.
    """
    name = f"answers of {function.__module__}.{function.__qualname__}"

    @wraps(function)
    def ask(owner: Any, *question: object) -> Any:
        known = vars(owner).get(name)
        if known is None:
            known = vars(owner)[name] = {}
        if question in known:
            return known[question]
        answer = function(owner, *question)
        if not Memory.waiting:
            known[question] = answer
        return answer

    return cast(F, ask)


class Memory(Generic[T]):
    """Answers by question. A question that needs its own answer gets `circular` for that part of it."""

    waiting = 0  # questions to all memories that are being worked out

    def __init__(self, circular: T, too_deep: T | None = None) -> None:
        """`too_deep`: the answer where too many questions wait for each other (default: `circular`)."""
        self.known: dict[object, T] = {}
        self._circular, self._too_deep = circular, circular if too_deep is None else too_deep
        self._open: dict[object, int] = {}
        self._most_depth = max(LEAST_DEPTH, sys.getrecursionlimit() // CALLS_PER_ANSWER)
        self._missing = 0  # by depth, one bit for each open question whose answer the present one lacks
        self._partial: dict[object, tuple[T, int]] = {}  # answers that lack a part, with what each one lacks
        self._lacking: defaultdict[int, list[object]] = defaultdict(list)  # the same by the last question opened
        self._rounds: Counter[object] = Counter()

    def once(self, question: object, compute: Callable[[], T]) -> T:
        """Return the answer to a question, from `compute` where it is not known yet.

        What was worked out while a question that it depends on was open lacks a part: it counts until that is closed.
        """
        if question in self.known:
            return self.known[question]
        depth = len(self._open)
        if question in self._open:
            self._missing |= 1 << self._open[question]
            return self._circular
        if depth >= self._most_depth:
            self._missing |= (1 << depth) - 1
            return self._too_deep
        if question in self._partial:
            answer, missing = self._partial[question]
            self._missing |= missing
            return answer
        before, self._missing = self._missing, 0
        self._open[question] = depth
        Memory.waiting += 1
        try:
            answer = compute()
        finally:
            Memory.waiting -= 1
            del self._open[question]
            missing = self._missing & ~(1 << depth)
            self._missing = before | missing
            for other in self._lacking.pop(depth, ()):
                del self._partial[other]
        if not missing or self._rounds[question] >= MOST_ROUNDS - 1:
            self.known[question] = answer
        else:
            self._rounds[question] += 1
            self._partial[question] = answer, missing
            self._lacking[missing.bit_length() - 1].append(question)
        return answer
