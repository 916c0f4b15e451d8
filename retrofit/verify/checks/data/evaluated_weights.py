"""The weights that the ranks evaluate: another figure than that of one process may be that of another model."""

from __future__ import annotations

from retrofit.verify.checks.training.differences import fingerprints_differ
from retrofit.verify.evidence import RankTrace, Run
from retrofit.verify.trace.events import EvaluatedModel

SAME = 1e-6  # relative


def evaluated_apart(many: Run, step: int) -> str | None:
    """Return which model has other weights on another rank in the last evaluation after so many steps; None without."""
    first, *others = (_last(rank, step) for rank in many.ranks)
    for rank, models in enumerate(others, start=1):
        for key in first.keys() & models.keys():
            if fingerprints_differ(first[key].parameters, models[key].parameters, SAME):
                return f"the ranks evaluate different weights: those of {key[0]} on rank {rank} are not rank 0's"
    return None


def _last(rank: RankTrace, step: int) -> dict[tuple[str, bool, int], EvaluatedModel]:
    """Return the last weights of each kind of model, without sharded ones: by class, whether trained, and number."""
    events = [event for event in rank.of(EvaluatedModel) if event.step == step and not event.is_sharded]
    return {(event.type, event.is_trained, len(event.parameters)): event for event in events}
