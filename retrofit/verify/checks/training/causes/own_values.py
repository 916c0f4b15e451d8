"""Numbers that enter the loss and are not those of one process: weights of classes, a mean, a temperature."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from retrofit.verify.checks.finding import Finding
from retrofit.verify.evidence import RankTrace, Runs, relative_difference
from retrofit.verify.trace.events import Fingerprint, SteadyInput

SAME = 1e-5  # relative to the norm: what float32 rounds is less
EXACT = 1e-6
FEW = 4  # numbers of a tensor that are shown
OWN, OTHERS = "numbers of their own", "numbers that are not those of one process"
BY_SHARES = "each computed from the rank's own samples: together they give that of one process"
Argument = tuple[str, str, int]  # the line of the script, the operator, the number of the argument


@dataclass(frozen=True)
class Input:
    """What one operator is given in each process, batch after batch."""

    event: SteadyInput  # of rank 0
    place: int  # in its lists
    ranks: list[Fingerprint]
    alone: Fingerprint  # on one process
    numbers: list[list[float]]  # the first ones, by rank, those of one process last

    def differs(self, rank: int, other: int) -> bool:
        """Return whether two processes have other numbers; -1 is the one process."""
        tensors = [*self.ranks, self.alone]
        return _differ(tensors[rank], tensors[other]) or any(
            relative_difference(a, b, tensors[rank][0]) > SAME for a, b in zip(self.numbers[rank], self.numbers[other])
        )

    @property
    def is_common(self) -> bool:
        """Whether all ranks have the same numbers."""
        return not any(self.differs(rank, 0) for rank in range(1, len(self.ranks)))

    def fault(self, what: str, cause: str, origin: str) -> Finding:
        name, where = self.event.names[self.place], self.event.where
        *ranks, alone = [_shown(numbers, self.event.shapes[self.place]) for numbers in self.numbers]
        of_ranks = ", ".join(f"{text} on rank {rank}" for rank, text in enumerate(ranks))
        summary = f"the ranks compute with {what} ({name or 'a value'} at {where}), {origin}"
        return Finding(summary, cause, note=f"{name or 'it'} is {of_ranks}, {alone} on one process", place=where)


def own_values(runs: Runs, step: int) -> Finding | None:
    """Return a fault where the ranks compute a loss with other numbers than each other, which no batch has made."""
    for one in _inputs(runs, step):
        if one.is_common:
            continue
        if not one.differs(0, -1):
            return one.fault(OWN, "RF108", "as with a seed, or an order, of each rank's own")
        of_shares = _is_mean(one, 1) or _is_mean(one, len(one.ranks))
        return one.fault(OWN, "RF401", BY_SHARES if of_shares else "as what is computed from a rank's own samples is")
    return None


def values_of_one_rank(runs: Runs, step: int) -> Finding | None:
    """Return a fault where all ranks compute with a tensor that one process does not have, which no batch has made."""
    for one in _inputs(runs, step):
        world = len(one.ranks)
        is_number = not one.event.shapes[one.place] and one.event.names[one.place] is None
        by_design = any(_is_factor(one.ranks[0], one.alone, factor) for factor in (world, 1 / world))
        if one.is_common and one.differs(0, -1) and not is_number and not by_design:
            return one.fault(OTHERS, "RF401", "as what is computed from rank 0's samples is")
    return None


def _inputs(runs: Runs, step: int) -> Iterator[Input]:
    """Yield what the ranks and one process have in common of what operators are given in the batch of a step.

    What has another shape on one process is of the batch.
    """
    found = [_latest(rank, step) for rank in (*runs["many"].ranks, runs["reference"].main)]
    if runs["many"].world_size == 1:
        return
    for argument, event in found[0].items():
        events = [known[argument] for known in found if argument in known]
        if len(events) < len(found) or len({len(one.values) for one in events}) > 1:
            continue
        for place in range(len(event.values)):
            values = [value for one in events if (value := one.values[place]) is not None]
            if len(values) == len(events) and all(one.shapes[place] == event.shapes[place] for one in events):
                yield Input(event, place, values[:-1], values[-1], [one.numbers[place] for one in events])


def _latest(rank: RankTrace, step: int) -> dict[Argument, SteadyInput]:
    known = [event for event in rank.of(SteadyInput) if event.since <= step]
    return {(event.where, event.op, event.argument): event for event in known}


def _differ(a: Fingerprint, b: Fingerprint) -> bool:
    scale = max(abs(a[0]), abs(b[0]))
    return any(relative_difference(one, other, scale) > SAME for one, other in zip(a, b))


def _is_factor(a: Fingerprint, b: Fingerprint, factor: float) -> bool:
    return all(relative_difference(one, factor * other, abs(a[0])) < EXACT for one, other in zip(a, b))


def _is_mean(one: Input, factor: int) -> bool:
    """Return whether the ranks' mean times a factor is the value of one process: so is that of their projections."""
    mean = factor * sum(value[1] for value in one.ranks) / len(one.ranks)
    return abs(mean - one.alone[1]) <= EXACT * max(one.alone[0], *(abs(value[0]) for value in one.ranks))


def _shown(numbers: Sequence[float], shape: Sequence[int]) -> str:
    shown = ", ".join(f"{number:.4g}" for number in numbers[:FEW])
    return f"[{shown}{', ...' if math.prod(shape) > FEW else ''}]" if shape else shown
