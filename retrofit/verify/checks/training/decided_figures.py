"""Figures by which the ranks decide: each rank's at the same decision, and those of one process."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from retrofit.verify.evidence import RankTrace, Run, relative_difference
from retrofit.verify.trace.events import DecisionInput
from retrofit.verify.trace.settings import PARTS

SAME = 1e-6  # relative: the order in which ranks add up
SMALLEST = 1e-9  # what is compared with this where it is smaller: the rounding of a zero
Key = tuple[str, int, str]


@dataclass(frozen=True)
class Parted:
    """A decision for which two processes have other figures."""

    event: DecisionInput  # of rank 0
    name: str
    values: tuple[float, float]  # of rank 0, and of the other one
    rank: int | None = None  # the other rank; None: one process

    def shown(self, world_size: int) -> str:
        ours, theirs = (f"{value:.10g}" for value in self.values)
        if self.rank is None:
            return f"{self.name} is {ours} on rank 0 of {world_size} processes, {theirs} with 1"
        return f"{self.name} is {ours} on rank 0, {theirs} on rank {self.rank}"


def decisions_of(rank: RankTrace) -> dict[Key, list[DecisionInput]]:
    found: dict[Key, list[DecisionInput]] = {}
    for event in rank.of(DecisionInput):
        found.setdefault((event.path, event.line, event.text), []).append(event)
    return found


def parted_ranks(many: Run) -> Parted | None:
    """Return the first decision that ranks make by other figures, so that they go other ways sooner or later."""
    first = decisions_of(many.main)
    found = [
        parted
        for rank in many.ranks[1:]
        for parted in _apart(first, decisions_of(rank), rank.rank)
        if parted.event.kind == PARTS
    ]
    return min(found, key=lambda one: (one.event.step, one.event.seconds), default=None)


def parted_from_one(many: Run, reference: Run, last_step: float) -> Parted | None:
    """Return the first decision of rank 0 by another figure than one process has, until `last_step`."""
    found = _apart(decisions_of(many.main), decisions_of(reference.main), None)
    votes = (float(many.world_size), 1.0)  # a sum over ranks that is compared with their number
    known = [one for one in found if one.event.step <= last_step and tuple(one.values) != votes]
    return min(known, key=lambda one: (one.event.step, one.event.seconds), default=None)


def _apart(
    ours: dict[Key, list[DecisionInput]], theirs: dict[Key, list[DecisionInput]], rank: int | None
) -> Iterator[Parted]:
    for key, events in ours.items():
        for a, b in zip(events, theirs.get(key, [])):
            if a.names != b.names or a.step != b.step:
                break
            values = zip(a.names, a.values, b.values)
            parted = next((one for one in values if relative_difference(one[1], one[2], SMALLEST) > SAME), None)
            if parted is not None:
                yield Parted(a, parted[0], parted[1:], rank)
                break
