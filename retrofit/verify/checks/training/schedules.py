"""Learning rate schedules whose settings or counts are not those of one process: their rates differ later on."""

from __future__ import annotations

from collections.abc import Iterator

from retrofit.verify.checks.finding import Finding
from retrofit.verify.evidence import RankTrace, Run
from retrofit.verify.trace.events import StateBeforeStep, Values

FACTOR = 1.5  # lengths that are less far apart may come from the rounding of a number of batches
FOLLOWS_RESULTS = {"num_bad_epochs", "cooldown_counter", "best"}  # of ReduceLROnPlateau


def schedule_fault(many: Run, one: Run) -> Finding | None:
    """Return a schedule that stands elsewhere on another rank, or is another one than on one process."""
    ours = _states(many.main)
    for rank in many.ranks[1:]:
        for name, key, a, b in _apart(ours, _states(rank), 1.0):
            value = f"{key} of {name}: {a} on rank 0, {b} on rank {rank.rank}"
            return Finding("a learning rate schedule is not stepped alike on all ranks", "RF305", None, value)
    if len(many.main.steps) != len(one.main.steps):
        return None
    for name, key, a, b in _apart(ours, _states(one.main), FACTOR):
        value = f"{key} of {name}: {a} with {many.world_size} processes, {b} with 1"
        return Finding("a learning rate schedule is another one than on one process", "RF305", None, value)
    return None


def _states(rank: RankTrace) -> dict[str, Values]:
    """Return what each scheduler held before the last optimizer step, by its name."""
    return {event.name: event.values for event in rank.of(StateBeforeStep) if "last_epoch" in event.values}


def _apart(ours: dict[str, Values], theirs: dict[str, Values], factor: float) -> Iterator[tuple[str, str, int, int]]:
    """Yield the whole numbers of common schedulers that are not the same, or further apart than `factor`."""
    for name, values in ours.items():
        for key, a in values.items():
            b = theirs.get(name, {}).get(key)
            if key in FOLLOWS_RESULTS or not isinstance(a, int) or not isinstance(b, int) or a == b:
                continue
            low, high = sorted((abs(a), abs(b)))
            if factor == 1.0 or high >= factor * max(low, 1):
                yield name, key, a, b
