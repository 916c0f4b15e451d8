"""Learning rate schedules whose settings or counts are not those of one process: their rates differ later on."""

from __future__ import annotations

from retrofit.verify.checks.finding import Finding
from retrofit.verify.evidence import RankTrace, Run, relative_difference
from retrofit.verify.trace.events import StateBeforeStep

COUNT = "last_epoch"  # of a scheduler: how often it was stepped
LENGTHS = ("T_0", "T_max", "milestones/", "step_size", "total_iters", "total_steps")
FACTOR = 1.5  # lengths that are less far apart may come from the rounding of a number of batches


def schedule_fault(many: Run, one: Run) -> Finding | None:
    """Return a schedule that is at another step on another rank, or whose length is not that of one process.

    A library may step a schedule several times at once: its length and its step are compared together.
    """
    ours = _states(many.main)
    for rank in many.ranks[1:]:
        for name, values in _states(rank).items():
            a, b = ours.get(name, {}).get(COUNT), values[COUNT]
            if a is not None and a != b:
                value = f"{COUNT} of {name}: {a} on rank 0, {b} on rank {rank.rank}"
                return Finding("a learning rate schedule is not stepped as often on all ranks", "RF305", None, value)
    if len(many.main.steps) != len(one.main.steps):
        return None
    for name, values in _states(one.main).items():
        key = _other_length(ours.get(name, {}), values)
        if key is not None:
            several, single = (f"{COUNT} {state[COUNT]}, {key} {state[key]}" for state in (ours[name], values))
            value = f"{name}: {several} with {many.world_size} processes, {single} with 1"
            return Finding("a learning rate schedule is another one than on one process", "RF305", None, value)
    return None


def is_stepped_often(many: Run, one: Run, factor: float) -> bool:
    """Return whether a schedule is this many times as far as on one process: in a warm-up its rates are so, too."""
    theirs = _states(one.main)
    counts = [(values[COUNT], theirs[name][COUNT]) for name, values in _states(many.main).items() if name in theirs]
    return any(b and relative_difference(a, factor * b) < 1 / b for a, b in counts)


def _states(rank: RankTrace) -> dict[str, dict[str, float]]:
    """Return the numbers that each scheduler held before the last optimizer step, by its name."""
    return {
        event.name: {key: value for key, value in event.values.items() if isinstance(value, (int, float))}
        for event in rank.of(StateBeforeStep)
        if isinstance(event.values.get(COUNT), int)
    }


def _other_length(ours: dict[str, float], theirs: dict[str, float]) -> str | None:
    """Return a length that a schedule of several processes has, and that is another part of the way than on one."""
    if COUNT not in ours or bool(ours[COUNT]) is not bool(theirs[COUNT]):
        return None
    factor = ours[COUNT] / theirs[COUNT] if theirs[COUNT] else 1.0
    for key, a in ours.items():
        b = theirs.get(key)
        if key.startswith(LENGTHS) and a and b and not 1 / FACTOR < a / b / factor < FACTOR:
            return key
    return None
