"""The state of a run at the end of its first epoch, which a checkpoint must restore."""

from __future__ import annotations

from collections.abc import Iterable

from retrofit.verify.checks.training.differences import tensors_differ
from retrofit.verify.evidence import RankTrace, Run
from retrofit.verify.trace.events import InitialWeights, OptimizerStep, WeightsBeforeStep


def steps_of_first_epoch(rank: RankTrace) -> int | None:
    """Return how many optimizer steps were made before the second training epoch; None when none began."""
    if len(rank.epochs) < 2:
        return None
    begin = rank.epochs[1].position
    return sum(position < begin for position in rank.step_positions)


def first_epoch_is_cut(many: Run) -> bool:
    """Return whether the trace ended the first epoch: a script that takes len(loader) for its steps counts others."""
    first = many.main.epochs[0] if many.main.epochs else None
    return first is not None and first.end is not None and first.end.is_capped


def steps_saved(many: Run, continued: Run) -> int | None:
    """Return how many optimizer steps the checkpoint holds from which a run continues: those of the first epoch."""
    return steps_of_first_epoch(many.main) if continued.steps_before is None else continued.steps_before


def when_saved(many: Run, continued: Run) -> dict[int, OptimizerStep]:
    """Return for each optimizer its last step before the checkpoint was written."""
    return {step.optimizer: step for step in many.main.steps[: steps_saved(many, continued) or 0]}


def starts_elsewhere(many: Run, continued: Run, rank: int, tolerance: float) -> list[int]:
    """Return the optimizers whose weights a run that continues does not have where the other run had them.

    That is after the last step before the checkpoint was written, or before the next one: a script may change weights
    by itself in between, before it saves them (a clamp) or in the next forward pass (an average of other weights).
    """
    reached, done = when_saved(many, continued), steps_saved(many, continued) or 0
    changed: dict[int, WeightsBeforeStep] = {}
    for event in many.main.of(WeightsBeforeStep):
        if event.number >= done:
            changed.setdefault(event.optimizer, event)
    return [
        number
        for number, event in state_of(continued.ranks[rank].of(InitialWeights)).items()
        if number in reached
        and tensors_differ(event, reached[number], tolerance)
        and (number not in changed or tensors_differ(event, changed[number], tolerance))
    ]


def state_of(events: Iterable[InitialWeights]) -> dict[int, InitialWeights]:
    """Return the first event of each optimizer."""
    found: dict[int, InitialWeights] = {}
    for event in events:
        found.setdefault(event.optimizer, event)
    return found
