"""Weights that no optimizer trains and that are not the same on all ranks: a target network, a teacher, key weights."""

from __future__ import annotations

from collections.abc import Sequence

from retrofit.verify.checks.finding import Finding, first_few
from retrofit.verify.checks.training.differences import fingerprints_differ
from retrofit.verify.evidence import RankTrace, Runs
from retrofit.verify.trace.events import UntrainedWeights

SAME = 1e-6  # relative: what networks make of rounding is less


def other_untrained(runs: Runs, step: int) -> Finding | None:
    """Return a fault where a step computes with weights that nothing trains and that other processes do not have."""
    many = runs["many"]
    ranks = [_latest(rank, step) for rank in many.ranks]
    alone = _latest(runs["reference"].main, step)
    if len({tuple(models) for models in ranks}) > 1 or many.world_size == 1:
        return None
    for number, first in ranks[0].items():
        apart = _apart(first, [models[number] for models in ranks[1:]])
        if apart:
            text = f"weights of {first.type} that no optimizer trains are not the same on all ranks: {first_few(apart)}"
            return Finding(f"{text} (a target network, a teacher, an average)", "RF211")
        if number in alone and (changed := _apart(first, [alone[number]])):
            text = (
                f"weights of {first.type} that no optimizer trains are not those of one process: {first_few(changed)}"
            )
            return Finding(text)
    return None


def _latest(rank: RankTrace, step: int) -> dict[int, UntrainedWeights]:
    """Return what each model had before a step, by its number."""
    return {event.model: event for event in rank.of(UntrainedWeights) if event.step <= step}


def _apart(first: UntrainedWeights, others: Sequence[UntrainedWeights]) -> list[str]:
    """Return the names of the weights that another process has otherwise; none where it has other ones at all."""
    if any(other.names != first.names for other in others):
        return []
    return [
        name
        for place, name in enumerate(first.names)
        if any(fingerprints_differ([first.parameters[place]], [one.parameters[place]], SAME) for one in others)
    ]
