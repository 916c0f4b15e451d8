"""The weights with which the losses of two ranks make that of one process."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

MOST = 2000  # elements in a batch
EXACT = 1e-9


def counts_by_losses(losses: Sequence[float], alone: float) -> tuple[int, int] | None:
    """Return how many elements of how many rank 0 has, where the loss of one process is exactly the mean over these.

    A weight that is a fraction of small numbers up to rounding is a count: others are one in a thousand at most.
    """
    if len(losses) != 2 or not all(map(math.isfinite, (*losses, alone))) or losses[0] == losses[1]:
        return None
    apart = abs(losses[0] - losses[1])
    if apart < 1e-4 * max(map(abs, losses)):
        return None  # rounding would be too large a part of it
    weight = (alone - losses[1]) / (losses[0] - losses[1])
    if not 0 < weight < 1:
        return None
    fraction = Fraction(weight).limit_denominator(MOST)
    is_count = abs(float(fraction) - weight) < EXACT and fraction != Fraction(1, 2)
    return (fraction.numerator, fraction.denominator) if is_count else None
