"""A prediction for each strategy and number of GPUs."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
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
    added: Callable[[Profile, Link, int], float]  # s of a step, on so many ranks
    error: float  # of predicted step times, relative: nine of ten are nearer (docs/plan.md)
    is_same: bool = True  # the same training but for rounding
    batches: int = 1  # of a step
    calls_of_layer: int = 0  # for which ranks wait for each other, layer by layer


STRATEGIES = (
    Strategy("ddp", "ddp", ddp.added, 0.20),
    Strategy("ddp, bf16 hook", "ddp", partial(ddp.added, in_16_bits=True), 0.28, is_same=False),
    Strategy(f"ddp, {ACCUMULATED} batches", "ddp", ddp.added, 0.16, is_same=False, batches=ACCUMULATED),
    Strategy("fsdp", "fsdp", partial(sharded.fsdp_added, is_gathered_again=True), 0.18, calls_of_layer=3),
    Strategy(
        "fsdp, grad-op", "fsdp grad-op", partial(sharded.fsdp_added, is_gathered_again=False), 0.25, calls_of_layer=2
    ),
    Strategy("zero2", "zero2", sharded.zero_added, 0.30),
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


def predictions(
    profile: Profile, link: Link, gpus: int, per_machine: int, shares_statistics: bool
) -> Iterator[Prediction]:
    """Yield a prediction for each strategy."""
    for strategy in STRATEGIES:
        yield predict(profile, link, gpus, strategy, per_machine, shares_statistics)


def predict(
    profile: Profile, link: Link, gpus: int, strategy: Strategy, per_machine: int, shares_statistics: bool
) -> Prediction:
    """Return the prediction: the step of one process, and what is added to it."""
    late = _late(profile, gpus) * math.sqrt(_meetings(profile, link, strategy))
    data = loading(profile, profile.num_workers, min(gpus, per_machine))
    calls = strategy.added(profile, link, gpus) + _each_forward(profile, link, gpus, shares_statistics)
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


def _each_forward(profile: Profile, link: Link, gpus: int, shares_statistics: bool) -> float:
    """Return what buffers cost: BatchNorm statistics of all ranks, as a converted training has them, or rank 0's."""
    if shares_statistics and profile.facts["batchnorm_channels"]:
        return ddp.of_batchnorm(profile, link, gpus)
    return ddp.of_buffers(profile, link, gpus)


def _late(profile: Profile, gpus: int) -> float:
    """Return how much longer than one rank's step the slowest of all takes: medians, the ranks' steps independent."""
    steps = sorted(step.seconds for steps in profile.copies for step in steps)
    return _quantile(steps, 0.5 ** (1 / gpus)) - _quantile(steps, 0.5)


def _meetings(profile: Profile, link: Link, strategy: Strategy) -> int:
    """Return how often the ranks wait for each other in a step: parts of it that are independent add up by squares."""
    return max(1, strategy.calls_of_layer * len(profile.layers)) if link.is_blocking else 1


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
