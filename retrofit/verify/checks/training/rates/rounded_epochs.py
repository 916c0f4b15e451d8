"""Schedules that count the batches of an epoch whose last one is not full: lengths that are rounded otherwise."""

from __future__ import annotations

from retrofit.verify.checks.data.samples import epochs_of_ranks, training_datasets
from retrofit.verify.evidence import RankTrace, Run

ALLOWED = 1e-9  # relative
ENOUGH = 4  # steps per epoch, of which one more or less is far from twice as many


def rounded_epochs(many: Run, one: Run) -> str | None:
    """Return why rates are not those of one process, where they are those of at most a step per epoch before or after.

    60 samples are 15 batches of 4, and 8 of 8: twice as many steps of two ranks are 16.
    """
    if many.num_steps < ENOUGH * many.num_epochs or not _ends_with_a_part(many):
        return None
    if not all(map(_is_near, _rates(many.main), _rates(one.main))):
        return None
    return (
        "rates are those of one process up to one step per epoch: its last batch is not full, so that the number of "
        "batches that a schedule counts is rounded otherwise"
    )


def _ends_with_a_part(many: Run) -> bool:
    """Return whether the last batch of all ranks in an epoch is not full, or is filled up."""
    for key in training_datasets(many):
        for shares in epochs_of_ranks(many, key)[:1]:
            size = sum(max(map(len, share.order or share.batches), default=0) for share in shares)
            samples = len({sample for share in shares for sample in share.drawn})
            if size and samples % size:
                return True
    return False


def _rates(rank: RankTrace) -> list[list[tuple[int, float]]]:
    """Return for each group of each optimizer the epoch and the rate of each step."""
    found: dict[tuple[int, int], list[tuple[int, float]]] = {}
    for (epoch, optimizer, _), step in zip(rank.step_places, rank.steps):
        for group, rate in enumerate(step.lr):
            found.setdefault((optimizer, group), []).append((epoch, rate))
    return list(found.values())


def _is_near(ours: list[tuple[int, float]], theirs: list[tuple[int, float]]) -> bool:
    rates = [rate for _, rate in theirs]
    further = rates[-1] - rates[-2] if len(rates) > 1 else 0.0  # where the run ends, a schedule does not
    rates += [rates[-1] + further * (number + 1) for number in range(ours[-1][0] + 1)]
    for step, (epoch, rate) in enumerate(ours):
        near = rates[max(0, step - epoch - 1) : step + epoch + 2]
        slack = ALLOWED * abs(rate)
        if not near or not min(near) - slack <= rate <= max(near) + slack:
            return False
    return True
