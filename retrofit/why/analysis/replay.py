"""The all-reduce of a step's buckets, made again with other sizes: what is left of it after the backward pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median

from .balance import CommonStep


def exposed(steps: Sequence[CommonStep], seconds_of: Callable[[float], float]) -> float:
    """Return the time (s) after the last rank's last bucket is full, median of the steps.

    Buckets are reduced one after the other, each as soon as all ranks have it: `begin = max(full, end before)`.
    `seconds_of` is applied to the seconds that each has taken; the identity gives what was measured.
    """
    return median(_exposed(step, seconds_of) for step in steps) if steps else 0.0


def reduced(steps: Sequence[CommonStep]) -> float:
    """Return the time (s) that the all-reduces of a step take, hidden or not, median of the steps."""
    return median(sum(seconds for _, seconds in _buckets(step)) for step in steps) if steps else 0.0


def num_buckets(steps: Sequence[CommonStep]) -> int:
    return round(median(len(step.ranks[0].buckets) for step in steps)) if steps else 0


def _exposed(step: CommonStep, seconds_of: Callable[[float], float]) -> float:
    buckets = _buckets(step)
    end = 0.0
    for full, seconds in buckets:
        end = max(full, end) + seconds_of(seconds)
    return max(0.0, end - buckets[-1][0]) if buckets else 0.0


def _buckets(step: CommonStep) -> list[tuple[float, float]]:
    """Return for each bucket when all ranks have it, and how long its all-reduce takes."""
    found, end = [], 0.0
    for of_ranks in zip(*(one.buckets for one in step.ranks)):
        full = max(bucket[0] for bucket in of_ranks)
        done = max(bucket[1] for bucket in of_ranks)
        found.append((full, max(0.0, done - max(full, end))))
        end = max(done, end)
    return found
