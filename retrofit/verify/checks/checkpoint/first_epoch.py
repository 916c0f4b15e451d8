"""The state of a run at the end of its first epoch, which a checkpoint must restore."""

from __future__ import annotations

from collections.abc import Iterable

from retrofit.verify.evidence import RankTrace, Run
from retrofit.verify.trace.events import InitialWeights, OptimizerStep


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


def state_of(events: Iterable[InitialWeights]) -> dict[int, InitialWeights]:
    """Return the first event of each optimizer."""
    found: dict[int, InitialWeights] = {}
    for event in events:
        found.setdefault(event.optimizer, event)
    return found
