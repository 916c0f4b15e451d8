"""The picture of a run that everything else is found in: the steps of all ranks, without the first ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from retrofit.why.marks import read_marks

from .balance import CommonStep, LateRank, common_steps, late_rank
from .clocks import on_one_clock
from .steps import Step, steps_of

WARM_UP = 3  # steps: allocations, DistributedDataParallel's second order of buckets, caches of the loader
FEWEST = 5  # steps that say something


class TooFewSteps(Exception):
    """The run has made too few steps to say something."""


@dataclass(frozen=True)
class Picture:
    """What is known of a run."""

    steps: list[CommonStep]  # without evaluations and the first ones
    facts: list[dict[str, Any]]  # of each rank
    single: list[Step]  # one process with the same arguments; empty where it was not run
    late: LateRank | None

    @property
    def world_size(self) -> int:
        return len(self.facts)

    @property
    def seconds(self) -> float:
        """Of a step, median."""
        return median(step.seconds for step in self.steps)

    @property
    def single_seconds(self) -> float:
        """Of a step of one process, median; 0 where it was not run."""
        return median(step.seconds for step in self.single) if self.single else 0.0

    @property
    def samples(self) -> float:
        """Of a step, on all ranks together, median."""
        return median(sum(one.samples for one in step.ranks) for step in self.steps)

    @property
    def speedup(self) -> float | None:
        """Samples per second, as a multiple of one process's; None where that is not known."""
        alone = median(step.samples for step in self.single) if self.single else 0.0
        if not alone or not self.samples:
            return None
        return (self.samples / self.seconds) / (alone / self.single_seconds)

    @property
    def speedup_without_losses(self) -> float:
        """What the speed-up would be if one process needed for a rank's share what a rank needs without the others."""
        lost = median((step.waited + step.transfer) / step.seconds for step in self.steps)
        return self.world_size * (1 - lost)

    def of_phase(self, *names: str) -> float:
        """Return the seconds of these phases in a step: mean of the ranks, median of the steps."""
        return median(
            sum(one.phases.get(name, 0.0) for one in step.ranks for name in names) / len(step.ranks)
            for step in self.steps
        )

    def of_meetings(self, part: str, *phases: str) -> float:
        """Return the seconds of waits or transfers (`part`) at meetings in these phases, median of the steps."""
        return median(
            sum(
                sum(wait.waits) / len(wait.waits) if part == "waits" else wait.transfer
                for wait, meeting in zip(step.waits, step.ranks[0].meetings)
                if meeting.phase in phases
            )
            for step in self.steps
        )


def picture_of(folder: Path, single: Path | None) -> Picture:
    """Return the picture of the run whose marks are in `folder`. Raises TooFewSteps."""
    found = sorted((read_marks(path) for path in folder.glob("rank*.json")), key=lambda one: one[0]["rank"])
    of_ranks = [_settled(steps_of(marks)) for marks in on_one_clock(found)] if found else []
    settled = _from_settled(common_steps(of_ranks))
    steps = [step for step in settled if not any(one.has_evaluation for one in step.ranks)]
    if len(steps) < FEWEST:
        made = min(map(len, of_ranks), default=0)
        raise TooFewSteps(
            f"{len(steps)} of {made} steps can be compared, and {FEWEST} are needed; give the script more steps per "
            "epoch or epochs, and see that all ranks make the same collective calls"
        )
    alone: list[Step] = []
    if single is not None:
        alone = [step for step in _settled(steps_of(read_marks(single / "rank0.json")[1])) if not step.has_evaluation]
    return Picture(steps, [facts for facts, _ in found], alone, late_rank(steps))


def _settled(steps: Sequence[Step]) -> list[Step]:
    return list(steps[WARM_UP:])


def _from_settled(steps: Sequence[CommonStep]) -> list[CommonStep]:
    """Leave out the first steps in which the ranks meet otherwise than they mostly do in the second half.

    The runtime averages gradients at the end of its first passes, and lets DDP reduce buckets from then on.
    """
    kinds = [tuple(meeting.kind for meeting in step.ranks[0].meetings) for step in steps]
    later = Counter(kinds[len(kinds) // 2 :]).most_common(1)
    first = kinds.index(later[0][0]) if later else 0
    return list(steps[first:])
