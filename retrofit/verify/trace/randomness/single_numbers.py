"""Single random numbers that a loop draws, one for each row of a batch: they cannot be told from one for all rows."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from typing import Any

from .draws import RowDraws

NAMES = ("random", "uniform", "gauss", "normalvariate", "betavariate", "expovariate", "choice", "randint", "randrange")


def install_single_numbers(draws: RowDraws) -> None:
    """Report numbers of Python's random that a line draws as often as the batch has rows."""

    def counted(draw: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(draw)
        def drawn(*args: Any, **kwargs: Any) -> Any:
            draws.count(draw.__name__)
            return draw(*args, **kwargs)

        return drawn

    for name in NAMES:
        setattr(random, name, counted(getattr(random, name)))
