"""The run in which each rank draws the numbers of its loop from its own streams: what they decide shows there.

In the compared runs a number for a whole batch (a coin, a weight of mixup) is on each rank that of one process.
"""

from __future__ import annotations

from dataclasses import replace

from retrofit.verify.checks.finding import Finding, first_few
from retrofit.verify.evidence import Run
from retrofit.verify.trace.events import BatchNumber

OWN_DRAWS = "own_draws"
CAUSE = "RF409"


def draws_apart(many: Run) -> list[str]:
    """Return the lines at which the ranks draw numbers for a batch from streams in different states."""
    first, *others = ({(one.op, one.where): one for one in rank.of(BatchNumber)} for rank in many.ranks)
    apart = {
        number.where: None
        for place, number in first.items()
        if any(place in other and other[place].state != number.state for other in others)
    }
    return list(apart)


def decided_by_draws(fault: Finding, many: Run) -> Finding:
    """Return what goes wrong in the run with each rank's own numbers alone, with the lines that draw them."""
    lines = first_few(draws_apart(many))
    summary = f"each rank draws a number of its own for its batch ({lines}), and they decide differently"
    return replace(fault, summary=f"{summary}: {fault.summary}", cause=CAUSE, place=None)
