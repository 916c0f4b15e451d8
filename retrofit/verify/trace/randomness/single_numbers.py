"""Single random numbers that a loop draws, one for each row of a batch: they cannot be told from one for all rows."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from typing import Any

from .draws import RowDraws

NAMES = ("random", "uniform", "gauss", "normalvariate", "betavariate", "expovariate", "choice", "randint", "randrange")
OTHERS = ("shuffle", "sample", "choices", "triangular", "getrandbits", "lognormvariate", "gammavariate")


def install_single_numbers(draws: RowDraws) -> None:
    """Report numbers of Python's random that a line draws as often as the batch has rows, and note the others."""

    def own_state() -> str | None:
        return draws.own_state("python", random.getstate())

    def watched(draw: Callable[..., Any], note: Callable[..., None]) -> Callable[..., Any]:
        @functools.wraps(draw)
        def drawn(*args: Any, **kwargs: Any) -> Any:
            note(draw.__name__, "python", own_state)
            return draw(*args, **kwargs)

        return drawn

    for names, note in ((NAMES, draws.count), (OTHERS, draws.note_number)):
        for name in names:
            setattr(random, name, watched(getattr(random, name), note))
