"""Weights that are changed in place on each rank by its own samples: in a forward pass, or between two steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from retrofit.verify.checks.finding import Finding, first_few
from retrofit.verify.evidence import RankTrace, Run
from retrofit.verify.trace.events import ChangedInForward, Weights

from .averaged_weights import apart_places, changes_between_steps
from .averaging import parameter_names

CAUSE = "RF211"
BY_OWN_SAMPLES = "in place on each rank, by its own samples"


def changed_in_forward(run: Run, events: Sequence[Weights]) -> Finding | None:
    """Return which initial weights, one event of each rank, are the same until a forward pass changes them."""
    optimizer, apart = events[0].optimizer, sorted(apart_places(events))
    before = [dict(_known(rank, optimizer)) for rank in run.ranks]
    if not any(before):
        return None
    for place in apart:
        if len({known.get(place, event.parameter_hashes[place]) for known, event in zip(before, events)}) > 1:
            return None
    summary = f"the first forward pass changes {_named(run, events, apart)} {BY_OWN_SAMPLES}: the ranks' weights"
    return Finding(f"{summary} were the same before it", CAUSE)


def changed_between_steps(run: Run, number: int) -> Finding | None:
    """Return which weights, the same on all ranks after the last step, were changed before this one."""
    for change in changes_between_steps(run):
        apart = sorted(apart_places(change.found))
        if change.step == number and apart and not apart_places(change.left):
            summary = f"something else than the optimizer changes {_named(run, change.found, apart)} before the step,"
            return Finding(f"{summary} {BY_OWN_SAMPLES} (in a forward pass?)", CAUSE, number)
    return None


def _known(rank: RankTrace, optimizer: int) -> Iterator[tuple[int, str]]:
    """Yield the places of the parameters that a forward pass has changed, each with its hash before."""
    for event in rank.of(ChangedInForward):
        if event.optimizer == optimizer:
            yield from zip(event.parameters, event.hashes)


def _named(run: Run, events: Sequence[Weights], places: Sequence[int]) -> str:
    names = parameter_names(run.main, events[0])
    return first_few([names[place] for place in places if place < len(names)])
