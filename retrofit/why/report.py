"""The card of a run: for programs, as curves, and in one sentence."""

from __future__ import annotations

from dataclasses import asdict
from statistics import median
from typing import Any

from retrofit.why.instruments.loaders import COLLATE

from .analysis.causes import causes_of
from .analysis.picture import Picture
from .analysis.remedies import remedies_for
from .analysis.steps import LOADING
from .analysis.waterfall import waterfall


def card(picture: Picture) -> dict[str, Any]:
    """Return everything that is said of a run, in seconds, for programs."""
    causes = causes_of(picture)
    return {
        "world_size": picture.world_size,
        "steps": len(picture.steps),
        "step_s": picture.seconds,
        "single_step_s": picture.single_seconds or None,
        "speedup": picture.speedup,
        "speedup_estimate": picture.speedup_without_losses,
        "waterfall": [{**asdict(row), "lost": row.lost} for row in waterfall(picture)],
        "causes": [asdict(cause) for cause in causes],
        "remedies": [
            {**asdict(remedy), "step_s": remedy.step_seconds(picture)} for remedy in remedies_for(picture, causes)
        ],
    }


def scalars(picture: Picture) -> dict[str, float]:
    """Return the figures of a run for curves. `why/straggler_rank` is -1 where no rank is late."""
    late = next((cause.rank for cause in causes_of(picture) if cause.rank is not None), None)
    return {
        "why/data_wait_ms": 1e3 * picture.of_phase(LOADING, COLLATE),
        "why/exposed_comm_ms": 1e3 * median(step.transfer for step in picture.steps),
        "why/late_ranks_ms": 1e3 * median(step.waited for step in picture.steps),
        "why/straggler_rank": -1 if late is None else late,
        "why/speedup": picture.speedup or picture.speedup_without_losses,
    }


def headline(picture: Picture) -> str:
    """Return the speed-up and the length of a step in one sentence."""
    world, steps = picture.world_size, f"{len(picture.steps)} steps compared"
    step = f"{1e3 * picture.seconds:.1f} ms per step"
    if world == 1:
        return f"one process: {step}, {steps}"
    if picture.speedup is not None:
        alone = f"{1e3 * picture.single_seconds:.1f} ms"
        return f"{world} processes are {picture.speedup:.2f} times as fast as one: {step}, one process {alone}; {steps}"
    return (
        f"{world} processes: {step}, {steps}. The speed-up over one process is not known: it was not run, or batches "
        f"have no samples to count. Waits and communication alone would leave {picture.speedup_without_losses:.2f}"
    )


def speedup_text(picture: Picture) -> str:
    """Return the speed-up in a few characters: "1.83 of 2 times", or a word where it is not known."""
    return "not compared" if picture.speedup is None else f"{picture.speedup:.2f} of {picture.world_size} times"
