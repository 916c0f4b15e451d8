"""The clocks of several machines: each counts from another moment, so marks of one are moved onto that of rank 0."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

from retrofit.why.marks import Mark

from .steps import ALL_REDUCE, steps_of

Rank = tuple[dict[str, Any], list[Mark]]  # facts and marks


def on_one_clock(ranks: Sequence[Rank]) -> list[list[Mark]]:
    """Return the marks of each rank, on the clock of the first one's machine.

    All ranks leave an all-reduce at nearly the same moment: the median of the differences is that of the clocks, to
    within the time that one message takes. Marks of a rank that shares no all-reduce with the first stay as they are.
    """
    first, of_first = ranks[0][0]["host"], None
    moved: list[list[Mark]] = []
    for facts, marks in ranks:
        if facts["host"] != first:
            of_first = _moments(ranks[0][1]) if of_first is None else of_first
            apart = [ours - theirs for ours, theirs in zip(_moments(marks), of_first)]
            offset = median(apart) if apart else 0.0
            moved.append([mark._replace(seconds=mark.seconds - offset) for mark in marks])
        else:
            moved.append(marks)
    return moved


def _moments(marks: Sequence[Mark]) -> list[float]:
    """Return when a rank left the all-reduce of its gradients, in each step that has one."""
    steps = steps_of(marks)
    return [next((one.left for one in step.meetings if one.kind == ALL_REDUCE), step.start) for step in steps]
