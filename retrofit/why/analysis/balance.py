"""Waits of the ranks for each other: which rank is late, how often, and what it spends the time on.

Ranks meet in every step. What a rank needs more than the others before it comes, the others wait; what all of them
need together after the last one has come is communication.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from .steps import Step


@dataclass(frozen=True)
class Wait:
    """One meeting of all ranks."""

    late: int  # the rank that came last
    late_by: float  # s after the one before it, as far as another rank waits for it
    waits: list[float]  # of each rank, s
    transfer: float  # s from the last arrival until the ranks leave, mean


@dataclass(frozen=True)
class CommonStep:
    """One step as all ranks made it."""

    ranks: list[Step]
    waits: list[Wait]

    @property
    def seconds(self) -> float:
        return sum(step.seconds for step in self.ranks) / len(self.ranks)

    @property
    def waited(self) -> float:
        """Seconds that a rank waited for late ones, mean of the ranks."""
        return sum(sum(wait.waits) for wait in self.waits) / len(self.ranks)

    @property
    def transfer(self) -> float:
        return sum(wait.transfer for wait in self.waits)


@dataclass(frozen=True)
class LateRank:
    """A rank for which the others wait, step after step."""

    rank: int
    seconds: float  # in each step, mean
    how_often: float  # share of the steps in which it is the latest
    excess: dict[str, float]  # s more than the others' median, by phase
    queued: float  # s more than the others' that it waits for a core
    samples: tuple[float, float]  # in a step: its own, the others' median


def common_steps(of_ranks: Sequence[Sequence[Step]]) -> list[CommonStep]:
    """Return the steps in which all ranks met at the same places, in order."""
    found = []
    for steps in zip(*of_ranks):
        kinds = [[meeting.kind for meeting in step.meetings] for step in steps]
        if all(kind == kinds[0] for kind in kinds):
            found.append(CommonStep(list(steps), [_wait(steps, place) for place in range(len(kinds[0]))]))
    return found


def _wait(steps: Sequence[Step], place: int) -> Wait:
    meetings = [step.meetings[place] for step in steps]
    told = [meeting.issued for meeting in meetings]
    last = max(told)
    others = sorted(told)[-2] if len(told) > 1 else last
    # A broadcast or a small message can be done for one rank before the last one has come.
    waits = [max(0.0, min(last, meeting.left) - meeting.came) for meeting in meetings]
    transfer = sum(max(0.0, meeting.left - max(last, meeting.came)) for meeting in meetings) / len(meetings)
    return Wait(told.index(last), min(last - others, max(waits)), waits, transfer)


def late_rank(steps: Sequence[CommonStep]) -> LateRank | None:
    """Return the rank for which the others wait most, None for one process or without meetings."""
    if not steps or len(steps[0].ranks) < 2 or not any(step.waits for step in steps):
        return None
    world = range(len(steps[0].ranks))
    by_rank = [[sum(w.late_by for w in step.waits if w.late == rank) for step in steps] for rank in world]
    net = [median(by_rank[rank]) for rank in world]
    rank = max(world, key=lambda one: (net[one], sum(by_rank[one])))
    most = [max(world, key=lambda one: by_rank[one][place]) for place in range(len(steps))]
    names = {name for step in steps for one in step.ranks for name in one.phases}
    excess = {name: _excess(steps, rank, _seconds_in(name)) for name in names}
    samples = [median(step.ranks[one].samples for step in steps) for one in world]
    return LateRank(
        rank,
        net[rank],
        most.count(rank) / len(steps),
        dict(sorted(excess.items(), key=lambda item: -item[1])),
        _excess(steps, rank, lambda one: one.queued),
        (samples[rank], median(samples[one] for one in world if one != rank)),
    )


def _seconds_in(phase: str) -> Callable[[Step], float]:
    return lambda step: step.phases.get(phase, 0.0)


def _excess(steps: Sequence[CommonStep], rank: int, value: Callable[[Step], float]) -> float:
    """Return by how much a rank's value is above the median of the others', median of the steps."""
    return median(
        value(step.ranks[rank]) - median(value(one) for place, one in enumerate(step.ranks) if place != rank)
        for step in steps
    )
