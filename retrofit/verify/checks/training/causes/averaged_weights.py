"""Weights that the ranks average every few steps, in place of their gradients: local SGD."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from retrofit.verify.checks.finding import Finding, first_few, number_of_ranks
from retrofit.verify.evidence import Run
from retrofit.verify.trace.events import Weights, WeightsBeforeStep
from retrofit.verify.verdict import count

from .averaging import parameter_names

SAME = 1e-5  # relative to the norm of a tensor


@dataclass(frozen=True)
class Change:
    """Something else than the optimizer has changed the weights between two steps."""

    step: int  # before which
    left: Sequence[Weights]  # by rank: what the optimizer has left
    found: Sequence[Weights]  # by rank: what the next step begins with


@dataclass(frozen=True)
class AveragedWeights:
    """Each rank trains on its own, and the weights are averaged over the ranks after some of the steps."""

    number: int  # of the averages that were seen
    period: int  # optimizer steps from one to the next, most often

    def shown(self, run: Run) -> str:
        often = "every step" if self.period == 1 else f"every {self.period} steps"
        return (
            f"each rank trains by itself, and the weights are averaged over {number_of_ranks(run)} after {often}: they "
            f"are bit-identical after each of {count(self.number, 'average')}"
        )


BY_DESIGN = (
    "the ranks average their weights, not their gradients (local SGD): by design not the training of one process"
)
# The same as averaged gradients for an optimizer that is linear in them, with nothing in between.
AFTER_EACH_STEP = (
    "the weights are averaged after each step, and not the gradients before it: what comes in between (clipping, Adam) "
    "works with the gradients of each rank's own share"
)


def averaged_weights(run: Run) -> AveragedWeights | None:
    """Return how the ranks' weights are averaged, where they part and are made equal again; None where they are not.

    Whatever else changes the weights between two steps (a clamp) has to leave them equal on all ranks, too.
    """
    changes = [change for change in changes_between_steps(run) if _are_apart(change.left)]
    if not changes or any(_are_apart(change.found) or not _is_mean(change) for change in changes):
        return None
    starts = [0, *(change.step for change in changes)]
    periods = Counter(later - earlier for earlier, later in zip(starts, starts[1:]))
    return AveragedWeights(len(changes), periods.most_common(1)[0][0])


def unequal_weights(run: Run) -> Finding | None:
    """Return what is wrong where the ranks make their weights equal between steps, and not by averaging them all."""
    changes = [change for change in changes_between_steps(run) if _are_apart(change.left)]
    for change in changes:
        equal = _equal(change.found)
        made = equal - _equal(change.left)
        apart = set(range(len(change.found[0].parameter_hashes))) - equal
        if made and apart and all(apart & apart_places(other.found) == apart for other in changes):
            names = parameter_names(run.main, change.found[0])
            left_out = [names[place] for place in sorted(apart) if place < len(names)]
            are = "is" if len(left_out) == 1 else "are"
            summary = f"{first_few(left_out)} {are} never averaged over the ranks, other weights are"
            return Finding(summary, "RF211", change.step)
        if apart or not made:
            continue
        given = _given_by(change)
        if given is not None:
            summary = f"all ranks take the weights of rank {given}: what the others have trained is lost"
            return Finding(summary, "RF209", change.step)
        if _is_mean(change, run.world_size):
            return Finding("the ranks add their weights up, and do not divide them by their number", None, change.step)
    return None


def changes_between_steps(run: Run) -> Iterator[Change]:
    """Yield where weights are others before a step than after the one before, on at least one rank."""
    if run.world_size == 1:
        return
    before = [{(event.optimizer, event.number): event for event in rank.of(WeightsBeforeStep)} for rank in run.ranks]
    latest: dict[int, list[Weights]] = {}
    for number, row in enumerate(zip(*(rank.steps for rank in run.ranks))):
        optimizer = row[0].optimizer
        left = latest.get(optimizer)
        found = [events.get((optimizer, number)) for events in before]
        if left is not None and any(found):
            yield Change(number, left, [event or own for event, own in zip(found, left)])
        latest[optimizer] = list(row)


def _are_apart(events: Sequence[Weights]) -> bool:
    return len({event.parameter_hash for event in events}) > 1


def apart_places(events: Sequence[Weights]) -> set[int]:
    """Return the places of the parameters that are not the same in all events."""
    rows = zip(*(event.parameter_hashes for event in events))
    return {place for place, row in enumerate(rows) if len(set(row)) > 1}


def _equal(events: Sequence[Weights]) -> set[int]:
    return set(range(len(events[0].parameter_hashes))) - apart_places(events)


def _is_mean(change: Change, factor: float = 1.0) -> bool:
    """Return whether rank 0's weights are then this many times the mean of those before: so is their projection."""
    for place, (norm, projection) in enumerate(change.found[0].parameters):
        own = [event.parameters[place] for event in change.left]
        mean = factor * sum(one[1] for one in own) / len(own)
        if abs(projection - mean) > SAME * max(norm, *(one[0] for one in own)):
            return False
    return True


def _given_by(change: Change) -> int | None:
    """Return the rank whose weights all ranks have then."""
    hashes = [event.parameter_hash for event in change.left]
    given = change.found[0].parameter_hash
    return hashes.index(given) if given in hashes else None
