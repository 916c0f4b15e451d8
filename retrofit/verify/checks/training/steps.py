"""Initial weights, losses, gradients and weights of every step against those of one process."""

from __future__ import annotations

import math
from dataclasses import replace

from retrofit.verify.checks.data.split import own_datasets
from retrofit.verify.checks.finding import Finding, fail_with, joined, not_made, why_not
from retrofit.verify.checks.options import CheckOptions
from retrofit.verify.evidence import Runs, relative_difference
from retrofit.verify.trace.events import InitialWeights
from retrofit.verify.verdict import Verdict, count, not_applicable, passed

from .causes.averaged_weights import AFTER_EACH_STEP, BY_DESIGN, averaged_weights
from .causes.clipped import hidden_by_clipping
from .causes.diagnosis import explain
from .differences import (
    GRADIENTS,
    GROWN,
    LOSS,
    PARAMETERS,
    allowed_sizes,
    compared_steps,
    differences,
    first_difference,
    initial_fault,
    rank_losses,
    reference_loss,
    rounding_growth,
    step_tolerance,
    tensors_of,
    tolerance_of,
)
from .rounding.own_precision import MARGIN, averaged_in, is_as_is

TITLES = {
    LOSS: "the loss of every step is that of one process",
    GRADIENTS: "the gradients of every step are those of one process",
    PARAMETERS: "the weights after every step are those of one process",
}

VERBS = {LOSS: "the loss differs", GRADIENTS: "the gradients differ", PARAMETERS: "the weights differ"}


def initial_state(runs: Runs, options: CheckOptions) -> Verdict:
    """Compare the weights before the first step, between the ranks and with one process."""
    check, title = "initial_state", "all ranks start from the weights of one process"
    reason = not_made(runs, "many")
    if reason:
        return not_applicable(check, title, reason)
    many, reference = runs["many"], runs.get("reference")
    if not all(rank.of(InitialWeights) for rank in many.ranks):
        return not_applicable(check, title, why_not(many, "no optimizer made a step"))
    fault = initial_fault(runs, tolerance_of(many, options))
    if fault is not None:
        return fail_with(check, title, fault)
    tensors = sum(len(event.parameters) for event in many.main.of(InitialWeights))
    summary = f"{count(tensors, 'tensor')} are the same on {count(many.world_size, 'rank')}"
    if reference is None or not reference.ranks or not reference.main.of(InitialWeights):
        return passed(check, title, summary, "there is no single process to compare with (see completes)")
    return passed(check, title, f"{summary} and on one process")


def loss(runs: Runs, options: CheckOptions) -> Verdict:
    """Compare the mean of the ranks' losses with the loss of one process on their joint batches."""
    return _compare(runs, options, LOSS)


def gradients(runs: Runs, options: CheckOptions) -> Verdict:
    """Compare the gradients that the optimizers see."""
    return _compare(runs, options, GRADIENTS)


def parameters(runs: Runs, options: CheckOptions) -> Verdict:
    """Compare the weights after each step."""
    return _compare(runs, options, PARAMETERS)


def _compare(runs: Runs, options: CheckOptions, quantity: str) -> Verdict:
    title = TITLES[quantity]
    reason = _incomparable(runs, options, quantity) or _no_value(runs, quantity)
    if reason:
        return not_applicable(quantity, title, reason)
    tolerance = step_tolerance(runs["many"], options)
    first = first_difference(runs, quantity, tolerance)
    hidden = hidden_by_clipping(runs, range(compared_steps(runs))) if first is None and quantity == GRADIENTS else None
    if hidden is not None:
        return fail_with(quantity, title, hidden)
    if first is None:
        return passed(quantity, title, *_closeness(runs, quantity, tolerance))
    if quantity == LOSS and _is_only_a_convention(runs, tolerance):
        note = "the ranks' losses carry a constant factor that the averaging of gradients takes out again"
        return passed(quantity, title, f"the same but for a factor, over {count(compared_steps(runs), 'step')}", note)
    if averaged_weights(runs["many"]) is not None:
        return fail_with(quantity, title, Finding(AFTER_EACH_STEP, "RF201", first.step, first.value))
    if is_as_is(runs):
        tolerance = allowed_sizes(runs, quantity, tolerance, first.step + 1)[-1]
    reason_found = explain(runs, quantity, first.step, tolerance, options.coupled)
    if reason_found.undecided or ("(see lr)" in reason_found.summary and "lr" in options.accept):
        summary = f"cannot be judged: {reason_found.summary}"
        return not_applicable(quantity, title, summary, f"first difference at step {first.step}: {first.value}")
    size = f"by {first.size:.1e} (relative)" if first.size < 1e6 else "without bound"
    summary = f"{reason_found.summary}; {VERBS[quantity]} {size}"
    return fail_with(quantity, title, replace(reason_found, summary=summary, step=first.step, value=first.value))


def _incomparable(runs: Runs, options: CheckOptions, quantity: str) -> str | None:
    reason = not_made(runs, "many", "reference")
    if reason:
        return reason
    for name in ("many", "reference"):
        if not runs[name].num_steps:
            return why_not(runs[name], "no optimizer step was made")
    if compared_steps(runs) == 0:
        return "the gradient scaler leaves out other steps on one process, from the first one on"
    own = own_datasets(runs)
    if own is not None:
        return f"one process cannot repeat the ranks' batches: {own}"
    if initial_fault(runs, tolerance_of(runs["many"], options)) is not None:
        return "the runs start from different weights (see initial_state)"
    averaged = averaged_weights(runs["many"])
    is_shown_by_losses = averaged is not None and averaged.period == 1 and quantity == LOSS
    return BY_DESIGN if averaged is not None and not is_shown_by_losses else None


def _no_value(runs: Runs, quantity: str) -> str | None:
    """Return why there is no number to compare: two runs without one are not the same training."""
    steps = [step for name in ("many", "reference") for rank in runs[name].ranks for step in rank.steps]
    if quantity == LOSS:
        values = [loss for step in steps for loss in step.losses]
        missing = "no backward call on a loss was seen"
    else:
        tensors = [tensor for step in steps for tensor in tensors_of(step, quantity) if tensor]
        values = [value for tensor in tensors for value in tensor]
        missing = f"no {quantity} were seen in any optimizer step"
    if not values:
        return missing
    return None if any(map(math.isfinite, values)) else "not one number is finite, on one process or on several"


def _closeness(runs: Runs, quantity: str, tolerance: float) -> tuple[str, str | None]:
    steps, made = compared_steps(runs), runs["many"].num_steps
    largest = max((one.size for one in differences(runs, quantity)), default=0.0)
    notes = [f"{made - steps} further steps have no counterpart on one process"] if steps < made else []
    if is_as_is(runs):
        allowed = max(allowed_sizes(runs, quantity, tolerance, steps), default=tolerance)
        notes.append(f"rounding explains {allowed:.0e}: {MARGIN:g} times what perturbed runs of one process differ")
        narrow = averaged_in(runs["many"])
        notes += [f"the ranks average their gradients in {narrow}"] if narrow else []
    elif largest > tolerance:
        grown = max(rounding_growth(runs, quantity))
        more = "" if largest <= GROWN * grown else ", and both have grown step by step, from rounding in the first"
        notes.append(f"by rounding: one process differs by {grown:.0e} when its batches have another order{more}")
    return f"largest relative difference {largest:.0e} in {count(steps, 'step')}", joined(notes)


def _is_only_a_convention(runs: Runs, tolerance: float) -> bool:
    """Return whether losses differ by a constant factor while gradients and weights are those of one process.

    A script may divide its loss by the number of processes and add gradients up instead of averaging them.
    """
    if any(first_difference(runs, quantity, tolerance) for quantity in (GRADIENTS, PARAMETERS)):
        return False
    many, reference = runs["many"], runs["reference"]
    ratios = []
    for step in range(compared_steps(runs)):
        alone = reference_loss(reference, step)
        if alone == 0.0:
            return False
        ratios.append(sum(rank_losses(many, step)) / many.world_size / alone)
    factors = (many.world_size, 1 / many.world_size)
    return any(all(relative_difference(ratio, factor) <= tolerance for ratio in ratios) for factor in factors)
