"""What a run had become when its first epoch was over: the state that a checkpoint must bring back."""

from __future__ import annotations

from collections.abc import Sequence

from retrofit.verify.evidence import Event, RankTrace


def steps_of_first_epoch(rank: RankTrace) -> int | None:
    """Return how many optimizer steps were made before the second training epoch; None when none began."""
    if len(rank.epochs) < 2:
        return None
    begin = rank.epochs[1].position
    return sum(position < begin for position in rank.step_positions)


def after_first_epoch(rank: RankTrace) -> dict[int, Event]:
    """Return for each optimizer its last step in the first epoch."""
    return {int(step.get("opt", 0)): step for step in rank.steps[: steps_of_first_epoch(rank) or 0]}


def state_of(events: Sequence[Event]) -> dict[int, Event]:
    """Return the first event of each optimizer."""
    found: dict[int, Event] = {}
    for event in events:
        found.setdefault(int(event.get("opt", 0)), event)
    return found
