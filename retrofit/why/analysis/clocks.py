"""The clocks of several machines: each counts from another moment, so marks of one are moved onto that of rank 0."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

from retrofit.why.marks import Mark

from .steps import steps_of

Rank = tuple[dict[str, Any], list[Mark]]  # facts and marks


def on_one_clock(ranks: Sequence[Rank]) -> list[list[Mark]]:
    """Return the marks of each rank, on the clock of the first one's machine.

    All ranks leave a meeting at nearly the same moment: the median of the differences is that of the clocks, to within
    the time that one message takes. Marks of a rank that does not meet the first stay as they are.
    """
    host, of_first = ranks[0][0]["host"], _moments(ranks[0][1])
    return [marks if facts["host"] == host else _moved(marks, of_first) for facts, marks in ranks]


def _moved(marks: list[Mark], of_first: Sequence[float]) -> list[Mark]:
    apart = [ours - theirs for ours, theirs in zip(_moments(marks), of_first)]
    offset = median(apart) if apart else 0.0
    return [mark._replace(seconds=mark.seconds - offset) for mark in marks]


def _moments(marks: Sequence[Mark]) -> list[float]:
    """Return when a rank left the last meeting of each step that has one."""
    return [step.meetings[-1].left for step in steps_of(marks) if step.meetings]
