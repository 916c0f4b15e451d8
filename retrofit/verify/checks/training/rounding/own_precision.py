"""Tolerances of a comparison in the script's own precision, measured by perturbing the run on one process.

As in TTrace (arXiv 2506.09280), the difference of two sound runs is not assumed but measured. One process trains again
with the samples of each batch in other orders, and with random errors of half a unit in the last place in the results
of products and sums (`trace/randomness/rounding.py`). Statistics, for each step and quantity:

1. the difference of such a run from the undisturbed one: of the loss relative, of tensors the largest over all tensors
   of the difference of norm or projection, relative to the norm (`differences.py`);
2. the largest of that over the runs, and over the steps so far, the FIRST at least: what is apart remains so;
3. that times MARGIN, and at least LEAST units in the last place of the weights' type.
"""

from __future__ import annotations

from retrofit.verify.evidence import Run, Runs
from retrofit.verify.trace.events import CollectiveCall

ROUNDED = ("rounded", "rounded_again")  # runs with random errors
PERTURBED = ("reordered", *ROUNDED)
MARGIN = 5.0
FIRST = 4
LEAST = 8
UNITS = {"float64": 2.0**-52, "float32": 2.0**-23, "bfloat16": 2.0**-7, "float16": 2.0**-10}
ORDER_COUNTS = 100.0  # times as far apart as by rounding, at once: the loss depends on the order of the samples
NARROW = ("bfloat16", "float16")


def is_as_is(runs: Runs) -> bool:
    """Return whether the runs were made in the script's own precision."""
    return "rounded" in runs


def least_tolerance(run: Run) -> float:
    """Return the tolerance that a quantity has which no perturbation changes."""
    dtype = run.main.steps[0].dtype if run.main.steps else "float64"
    return LEAST * UNITS.get(dtype, UNITS["float32"])


def averaged_in(many: Run) -> str:
    """Return the narrower type in which the ranks average float32 gradients, "" if there is none."""
    if not many.main.steps or many.main.steps[0].dtype not in ("float32", "float64"):
        return ""
    sums = [event for event in many.main.of(CollectiveCall) if event.op.startswith(("allreduce", "reduce_scatter"))]
    types = [event.dtype for event in sums if event.in_backward or event.numel > 1]
    return next((dtype for dtype in NARROW if dtype in types), "")


def comparable_steps(runs: Runs) -> int | None:
    """Return how many steps both runs make from the same batches; None for all.

    Where gradients overflow, a gradient scaler leaves out a step, at the brink in one of the runs alone.
    """
    ours = [sum(rows) for rows in zip(*(rank.rows_per_step for rank in runs["many"].ranks))]
    theirs = runs["reference"].main.rows_per_step
    return next((step for step, (a, b) in enumerate(zip(ours, theirs)) if a != b), None)
