"""Figures that rank 0 gives out in a sound training and that are not those of one process: its own share."""

from __future__ import annotations

from collections.abc import Iterator

from retrofit.verify.checks.training.differences import last_same_step
from retrofit.verify.evidence import Runs

from .printed_numbers import all_values, clearly_apart, pairs_by_step


def own_figures(runs: Runs, tolerance: float) -> Iterator[str]:
    """Yield one text for each name under which rank 0, with the same weights, gives another number than one process."""
    many, reference = runs.get("many"), runs.get("reference")
    if many is None or reference is None:
        return
    last_step = last_same_step(runs, tolerance)
    if last_step is None:
        return
    theirs = all_values(reference.main)
    for name, values in all_values(many.main).items():
        pairs = pairs_by_step(values, theirs.get(name, []))
        own = clearly_apart([(a, b) for a, b in pairs if a.step <= last_step])
        if own:
            a, b = own[0]
            place = f" at {a.where}" if a.where else ""
            yield f"{a.label or name}{place}: {a.text} with {many.world_size} processes, {b.text} with 1"
