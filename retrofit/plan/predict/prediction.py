"""A prediction for each strategy and number of GPUs."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import pstdev

from retrofit.plan.link.link import Link
from retrofit.plan.profile.profile import Profile

from . import ddp, sharded
from .memory import Memory, memory_of

ACCUMULATED = 4  # batches
Z_OF_90 = 1.645


@dataclass(frozen=True)
class Strategy:
    """A way to train on several GPUs."""

    name: str
    memory: str  # as `memory_of` calls it
    error: float  # of predicted step times, relative: nine of ten are nearer (docs/plan.md)
    is_same: bool = True  # the same training but for rounding
    batches: int = 1  # of a step


DDP = Strategy("ddp", "ddp", 0.20)
STRATEGIES = (
    DDP,
    Strategy("ddp, bf16 hook", "ddp", 0.28, is_same=False),
    Strategy(f"ddp, {ACCUMULATED} batches", "ddp", 0.16, is_same=False, batches=ACCUMULATED),
    Strategy("fsdp", "fsdp", 0.18),
    Strategy("fsdp, grad-op", "fsdp grad-op", 0.25),
    Strategy("zero2", "zero2", 0.30),
)


@dataclass(frozen=True)
class Prediction:
    """A step under a strategy on `gpus` GPUs."""

    strategy: Strategy
    gpus: int
    seconds: float  # of a step
    low: float
    high: float  # with `low`: the interval of 90 %
    samples: float  # of a step, on all GPUs
    memory: Memory  # of a rank
    calls: float  # s of the step that the strategy adds
    late: float  # s of the step for which ranks wait for the slowest
    data: float  # s of the step for which it waits for batches

    @property
    def rate(self) -> float:
        """Samples per second."""
        return self.samples / self.seconds

    def times(self, factor: float) -> Prediction:
        """Return the prediction with another length of the step."""
        return replace(self, seconds=factor * self.seconds, low=factor * self.low, high=factor * self.high)


def predictions(profile: Profile, link: Link, gpus: int, per_machine: int, is_converted: bool) -> Iterator[Prediction]:
    """Yield a prediction for each strategy."""
    for strategy in STRATEGIES:
        yield predict(profile, link, gpus, strategy, per_machine, is_converted)


def predict(
    profile: Profile, link: Link, gpus: int, strategy: Strategy, per_machine: int, is_converted: bool
) -> Prediction:
    """Return the prediction: the step of one process, and what is added to it."""
    late = _late(profile, gpus) * math.sqrt(_meetings(profile, link, strategy))
    data = loading(profile, profile.num_workers, min(gpus, per_machine))
    calls = _added(profile, link, gpus, strategy) + _each_forward(profile, link, gpus, is_converted)
    step = profile.seconds + late + data - profile.loading
    seconds = step + calls
    if strategy.batches > 1:
        seconds += (strategy.batches - 1) * (step - profile.optimizer)
    error = _error(profile, strategy)
    return Prediction(
        strategy, gpus, seconds, seconds * (1 - error), seconds * (1 + error),
        gpus * profile.samples * strategy.batches, memory_of(profile, strategy.memory, gpus), calls, late, data,
    )  # fmt: skip


def loading(profile: Profile, workers: int, ranks_of_machine: int) -> float:
    """Return how long a step waits for its batch with so many workers per rank."""
    batch = profile.batch_seconds
    if batch is None:
        batch = profile.loading  # the process makes its batches itself
        if workers == 0:
            return profile.loading
    elif workers == 0:
        return batch
    every = max(batch / workers, ranks_of_machine * batch / (os.cpu_count() or 1))
    rest = profile.seconds - profile.loading
    measured = profile.loading if workers == profile.num_workers else 0.0
    return max(measured, every - rest)


def _added(profile: Profile, link: Link, gpus: int, strategy: Strategy) -> float:
    if gpus < 2:
        return 0.0
    if strategy.memory.startswith("fsdp"):
        return sharded.fsdp_added(profile, link, gpus, is_gathered_again=strategy.memory == "fsdp")
    if strategy.memory.startswith("zero"):
        return sharded.zero_added(profile, link, gpus)
    return ddp.added(profile, link, gpus, in_16_bits="bf16" in strategy.name)


def _each_forward(profile: Profile, link: Link, gpus: int, is_converted: bool) -> float:
    """Return what buffers cost: a converted training has BatchNorm statistics of all ranks, DDP sends rank 0's."""
    if is_converted and profile.facts["batchnorm_channels"]:
        return ddp.of_batchnorm(profile, link, gpus)
    return ddp.of_buffers(profile, link, gpus)


def _late(profile: Profile, gpus: int) -> float:
    """Return how much longer than one rank's step the slowest of all takes: medians, the ranks' steps independent."""
    steps = sorted(step.seconds for steps in profile.copies for step in steps)
    return _quantile(steps, 0.5 ** (1 / gpus)) - _quantile(steps, 0.5)


def _meetings(profile: Profile, link: Link, strategy: Strategy) -> int:
    """Return how often the ranks wait for each other in a step: parts of it that are independent add up by squares."""
    if not (link.is_blocking and strategy.memory.startswith("fsdp")):
        return 1
    return (3 if strategy.memory == "fsdp" else 2) * len(profile.layers)


def _quantile(ordered: Sequence[float], share: float) -> float:
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


def _error(profile: Profile, strategy: Strategy) -> float:
    """Return the relative error that nine of ten predictions are below: of the model, and of the median step."""
    steps = [step.seconds for steps in profile.copies for step in steps]
    of_median = Z_OF_90 * 1.25 * pstdev(steps) / math.sqrt(len(steps)) / profile.seconds
    return min(0.9, math.hypot(strategy.error, of_median))
