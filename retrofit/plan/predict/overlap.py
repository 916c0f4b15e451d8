"""A backward pass with calls under way: each begins when it is asked for and the one before it has ended."""

from __future__ import annotations

from collections.abc import Sequence

from retrofit.plan.link.link import Overlap


def with_calls(work: float, calls: Sequence[tuple[float, float]], overlap: Overlap) -> float:
    """Return the seconds until `work` seconds of computation and all calls are done.

    `calls`, in order: after how much of the computation each is asked for, and the seconds that it takes alone. While
    both last, the computation has the speed `overlap.computation` and the call the speed `overlap.call`.
    """
    now = done = 0.0  # s; of the work
    waiting = list(calls)
    left = 0.0  # of the call that is under way
    while done < work or left > 0 or waiting:
        if left <= 0 and waiting and waiting[0][0] <= done:
            left = waiting.pop(0)[1]
        if done >= work:
            now, left = now + left, 0.0
            if waiting:
                waiting[0] = (done, waiting[0][1])
            continue
        speed = overlap.computation if left > 0 else 1.0
        until = min(work, waiting[0][0]) if left <= 0 and waiting else work
        seconds = max(0.0, until - done) / speed
        if left > 0 and left / overlap.call < seconds:
            seconds, left = left / overlap.call, 0.0
        elif left > 0:
            left -= seconds * overlap.call
        now, done = now + seconds, min(work, done + seconds * speed)
        if seconds == (until - done) / speed:
            done = until
    return now


def sharded_passes(
    forward: Sequence[float], backward: Sequence[float], gathers: Sequence[float], scatters: Sequence[float],
    is_gathered_again: bool, overlap: Overlap,
) -> float:  # fmt: skip
    """Return the seconds of a forward and a backward pass of a sharded model whose calls overlap its computation.

    All by layer, in the order of the forward pass: computation, the gather of its parameters, the reduce-scatter of its
    gradients. A layer's parameters are asked for when the layer before it begins; calls are made one after the other.
    """
    line = free = 0.0  # when the last call, and the last layer, is done
    asked = 0.0
    for seconds, gather in zip(forward, gathers):
        line = max(line, asked) + gather
        asked = max(free, line)
        free = asked + seconds / (overlap.computation if gather else 1.0)
    there = free
    for number in reversed(range(len(backward))):
        start = there = max(free, there)
        if is_gathered_again and number > 0:
            line = there = max(line, start) + gathers[number - 1]
        free = start + backward[number] / (overlap.computation if scatters[number] else 1.0)
        line = max(line, free) + scatters[number]
    return max(free, line)
