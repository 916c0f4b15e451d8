"""Single random numbers that a loop draws, one for each row of a batch: they cannot be told from one for all rows."""

from __future__ import annotations

import functools
import random
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

from .draws import RowDraws

NAMES = ("random", "uniform", "gauss", "normalvariate", "betavariate", "expovariate", "choice", "randint", "randrange")


def install_single_numbers(draws: RowDraws) -> None:
    """Report numbers of Python's random that a line draws as often as the batch has rows."""
    counts: Counter[tuple[str, int]] = Counter()  # of the batch in hand, by line
    batch: list[list[int]] = [[]]

    def counted(draw: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(draw)
        def drawn(*args: Any, **kwargs: Any) -> Any:
            rows = draws.rows()
            if len(rows) > 1:
                if rows != batch[0]:
                    batch[0] = rows
                    counts.clear()
                frame = sys._getframe(1)
                line = frame.f_code.co_filename, frame.f_lineno
                counts[line] += 1
                if counts[line] == len(rows):
                    draws.report(draw.__name__, [len(rows)])
            return draw(*args, **kwargs)

        return drawn

    for name in NAMES:
        setattr(random, name, counted(getattr(random, name)))
