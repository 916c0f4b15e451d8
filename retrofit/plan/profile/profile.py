"""A training on one process, read from the files of its copies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any

from retrofit.plan.profile.loaders import seconds_of_batch
from retrofit.plan.profile.model_facts import READY
from retrofit.why.analysis.picture import FEWEST, TooFewSteps
from retrofit.why.analysis.steps import FORWARD, LOADING, Step, steps_of
from retrofit.why.instruments.loaders import COLLATE
from retrofit.why.instruments.training import BACKWARD, OPTIMIZER
from retrofit.why.marks import BEGIN, END, Mark, read_marks


@dataclass(frozen=True)
class Profile:
    """A training on one process. Times in seconds, of a step; sizes in bytes."""

    copies: list[list[Step]]  # the steps of each process that ran at the same time
    ready: list[tuple[float, int]]  # of each gradient, in order: seconds after the (last) backward pass began, bytes
    backwards: int  # passes of a step
    facts: dict[str, Any]
    batch_seconds: float | None  # of a loader's worker for a batch; None without workers

    @cached_property
    def seconds(self) -> float:
        """Of a step, median."""
        return median(step.seconds for steps in self.copies for step in steps)

    @property
    def samples(self) -> float:
        return median(step.samples for steps in self.copies for step in steps)

    @property
    def loading(self) -> float:
        """The wait for the loader, or the making of a batch where it has no workers."""
        return self.part(LOADING, COLLATE)

    @property
    def forward(self) -> float:
        return self.part(FORWARD)

    @property
    def backward(self) -> float:
        return self.part(BACKWARD)

    @property
    def optimizer(self) -> float:
        return self.part(OPTIMIZER)

    @property
    def rest(self) -> float:
        """Of a step outside of loading, forward, backward and optimizer."""
        return max(0.0, self.seconds - self.loading - self.forward - self.backward - self.optimizer)

    @property
    def batches_per_epoch(self) -> int | None:
        """Batches of a pass over the training data, None where its loader has no length."""
        return self.facts.get("batches_per_epoch")

    @property
    def num_workers(self) -> int:
        return int(self.facts.get("num_workers", 0))

    @property
    def gradient_bytes(self) -> int:
        return sum(self.facts["gradients"])

    @property
    def layers(self) -> list[int]:
        """The bytes of what FSDP gathers at once, in the order of the forward pass."""
        return [sum(self.facts["gradients"][number] for number in layer) for layer in self.facts["layers"]]

    def part(self, *names: str) -> float:
        return median(sum(step.phases.get(name, 0.0) for name in names) for steps in self.copies for step in steps)


def read_profile(folder: Path) -> Profile:
    """Return the profile that the processes wrote to `folder`. Raises TooFewSteps."""
    found = [read_marks(path) for path in sorted(folder.glob("rank*.json"))]
    copies = [[step for step in steps_of(marks)[1:] if not step.has_evaluation] for _, marks in found]
    fewest = min(map(len, copies), default=0)
    if fewest < FEWEST:
        raise TooFewSteps(
            f"{fewest} steps without an evaluation were measured, and {FEWEST} are needed; give the script more steps "
            "per epoch or epochs"
        )
    facts, marks = found[0]
    ready, backwards = _ready(marks, facts["gradients"])
    return Profile(copies, ready, backwards, facts, seconds_of_batch(folder))


def _ready(marks: Sequence[Mark], sizes: Sequence[int]) -> tuple[list[tuple[float, int]], int]:
    """Return when each gradient is ready in the last backward pass of a step, and how many passes a step has."""
    offsets: dict[int, list[float]] = {}
    current: dict[int, float] = {}
    begin, passes, counts = 0.0, 0, []
    for mark in marks:
        if mark.kind == BEGIN and mark.name == BACKWARD:
            begin, passes = mark.seconds, passes + 1
        elif mark.name == READY:
            current[int(mark.value)] = mark.seconds - begin
        elif mark.kind == END and mark.name == OPTIMIZER and passes:
            counts.append(passes)
            for number, seconds in current.items():
                offsets.setdefault(number, []).append(seconds)
            passes, current = 0, {}
    ready = sorted((median(seconds), sizes[number]) for number, seconds in offsets.items())
    return ready, round(median(counts)) if counts else 1
