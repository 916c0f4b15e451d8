"""All-reduced elements per optimizer step, against the elements of its gradients."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from retrofit.verify.evidence import RankTrace
from retrofit.verify.trace.events import BackwardCall, BatchDrawn, CollectiveCall, Event, OptimizerFound, OptimizerStep

FLOATING = ("float", "bfloat", "double", "half")


@dataclass(frozen=True)
class StepTraffic:
    """What a rank all-reduced before one optimizer step."""

    opt: int
    needed: int  # elements of the gradients that the optimizer used
    reduced: int  # elements all-reduced since its first backward began
    reduced_last: int  # of these, after the last backward began
    in_backward: int  # of these, inside a backward
    backwards: int
    batches: int


def traffic(rank: RankTrace) -> list[StepTraffic]:
    """Return for each optimizer step what was all-reduced since the one before."""
    shapes = {event.optimizer: event.shapes for event in rank.of(OptimizerFound)}
    training = {iteration.begin.iteration for iteration in rank.training}
    found: list[StepTraffic] = []
    window: list[Event] = []
    for event in rank.events:
        if isinstance(event, OptimizerStep):
            found.append(_traffic_of(window, event, shapes.get(event.optimizer, [])))
            window = []
        elif isinstance(event, BatchDrawn):
            window += [event] if event.iteration in training else []
        elif isinstance(event, (CollectiveCall, BackwardCall)):
            window.append(event)
    return found


def _traffic_of(window: Sequence[Event], step: OptimizerStep, shapes: Sequence[Sequence[int]]) -> StepTraffic:
    needed = sum(math.prod(shape) for shape, gradient in zip(shapes, step.gradients) if gradient is not None)
    reduced = reduced_last = in_backward = backwards = batches = 0
    for event in window:
        if isinstance(event, BackwardCall):
            backwards, reduced_last = backwards + 1, 0
        elif isinstance(event, BatchDrawn):
            batches += 1
        elif isinstance(event, CollectiveCall) and backwards and _is_reduction(event):
            reduced += event.numel
            reduced_last += event.numel
            in_backward += event.numel if event.in_backward else 0
    return StepTraffic(step.optimizer, needed, reduced, reduced_last, in_backward, backwards, batches)


def _is_reduction(event: CollectiveCall) -> bool:
    is_reduction = "allreduce" in event.op or "reduce_scatter" in event.op
    return is_reduction and event.dtype is not None and event.dtype.startswith(FLOATING)
