"""Growth of rounding: differences that a network multiplies in each step, told from those that something else makes.

A training is often chaotic: what differs by a rounding error in one step differs by twice as much in the next. Such a
difference is as small as rounding in the first step, grows in the reordered run of one process, too, and jumps no
further in a step than one of about its size does there.
A fault is seen at its full size in the step in which it happens.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate

JUMP = 10.0  # times what the reordered run grows in a step: more is not growth
LEAST = 1e-13  # relative: rounding of one step in float64
LATER = 2  # steps, within which rounding decides at a kink (ReLU, a maximum) in the reordered run, too
SIMILAR = 100.0  # times as large: differences of about the same size
HALF = 0.5  # of the growth, in orders of magnitude, that the reordered run must have, too


def grown_steps(own: Sequence[float], reordered: Sequence[float]) -> list[bool]:
    """Return for each step whether its differences are what rounding has grown to.

    `own`: the largest relative difference of each step from one process; `reordered`: that of one process from itself
    when the samples of its batches have another order.
    """
    largest = [max(LEAST, size) for size in accumulate(own, max)]
    alone = [max(LEAST, size) for size in accumulate(reordered, max)]
    found: list[bool] = []
    for step in range(min(len(largest), len(alone))):
        before = largest[step - 1] if step else alone[0]
        if own[step] > JUMP * before * _largest_factor(alone[: step + 1 + LATER], before):
            break
        grown = max(1.0, largest[step] / largest[0] / JUMP)  # the first steps alone say little
        found.append(HALF * math.log(grown) <= math.log(alone[step] / alone[0]))
    return found + [False] * (len(own) - len(found))


def _largest_factor(sizes: Sequence[float], size: float) -> float:
    """Return the largest factor from one step to the next, of differences that are not far larger than `size`."""
    return max((b / a for a, b in zip(sizes, sizes[1:]) if a <= SIMILAR * size), default=1.0)
