"""Answers to questions that depend on each other, each worked out once."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")
LEAST_DEPTH, CALLS_PER_ANSWER = 80, 30  # questions that wait for each other; the calls that one needs, at most
MOST_ROUNDS = 3  # of working out one answer again because it depends on itself in part


class Memory(Generic[T]):
    """Answers by question. A question that needs its own answer gets `circular` for that part of it."""

    def __init__(self, circular: T, too_deep: T | None = None) -> None:
        """`too_deep`: the answer where too many questions wait for each other (default: `circular`)."""
        self.known: dict[object, T] = {}
        self._circular, self._too_deep = circular, circular if too_deep is None else too_deep
        self._open: dict[object, int] = {}
        self._most_depth = max(LEAST_DEPTH, sys.getrecursionlimit() // CALLS_PER_ANSWER)
        self._lowest_cut = self._most_depth
        self._rounds: Counter[object] = Counter()

    def once(self, question: object, compute: Callable[[], T]) -> T:
        """Return the answer to a question, from `compute` where it is not known yet.

        What was worked out while a question that it depends on was open is not kept: it lacks a part.
        """
        if question in self.known:
            return self.known[question]
        if question in self._open or len(self._open) >= self._most_depth:
            self._lowest_cut = min(self._lowest_cut, self._open.get(question, 0))
            return self._circular if question in self._open else self._too_deep
        depth = self._open[question] = len(self._open)
        try:
            answer = compute()
        finally:
            del self._open[question]
        self._rounds[question] += 1
        if self._lowest_cut >= depth or self._rounds[question] >= MOST_ROUNDS:
            self.known[question] = answer
        if self._lowest_cut >= depth:  # nothing below depends on what is still open above
            self._lowest_cut = self._most_depth
        return answer
