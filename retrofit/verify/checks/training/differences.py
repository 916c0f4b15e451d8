"""Differences of losses, gradients and weights between the ranks and the replay in one process."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from retrofit.verify.checks.finding import Finding
from retrofit.verify.checks.options import AS_IS, CheckOptions
from retrofit.verify.evidence import Run, Runs, relative_difference
from retrofit.verify.trace.events import BackwardCall, Fingerprint, InitialWeights, OptimizerStep, Weights

from .causes.averaging import parameter_names
from .ranks_agree import initial_disagreement
from .rounding.growth import grown_steps
from .rounding.own_precision import (
    FIRST,
    MARGIN,
    ORDER_COUNTS,
    PERTURBED,
    ROUNDED,
    comparable_steps,
    is_as_is,
    least_tolerance,
)

ROUNDING = 1e-12  # of the largest gradient: what is left of one that is zero (a bias before a BatchNorm layer)
START, MOST_BY_ROUNDING = 1e-10, 1e-4  # of a loss in the first step; of the first difference
GROWN = 10.0  # times what one process differs from itself
SMALL = 1e-3  # of the largest: what is smaller is compared with this, not with itself (rounding of a zero)
LOSS, GRADIENTS, PARAMETERS = "loss", "gradients", "parameters"


@dataclass(frozen=True)
class StepDifference:
    """How far the ranks are from one process in one optimizer step."""

    step: int
    size: float  # relative
    value: str


def tolerance_of(run: Run, options: CheckOptions) -> float:
    steps = run.main.steps
    return options.tolerance_for(steps[0].dtype if steps else "float64")


def step_tolerance(run: Run, options: CheckOptions) -> float:
    """Return the tolerance of losses, gradients and weights, which perturbed runs may raise."""
    return options.tolerance or 0.0 if options.precision == AS_IS else tolerance_of(run, options)


def rank_losses(many: Run, step: int) -> list[float]:
    """Return each rank's loss of a step: the sum over its backward calls."""
    return [math.fsum(rank.steps[step].losses) for rank in many.ranks]


def reference_loss(reference: Run, step: int) -> float:
    return math.fsum(reference.main.steps[step].losses)


def compared_steps(runs: Runs) -> int:
    made = min(runs["many"].num_steps, runs["reference"].num_steps)
    comparable = comparable_steps(runs) if is_as_is(runs) else None
    return made if comparable is None else min(made, comparable)


def differences(runs: Runs, quantity: str) -> list[StepDifference]:
    """Return the difference of `quantity` in each step that both have made."""
    many, reference = runs["many"], runs["reference"]
    steps = range(compared_steps(runs))
    if quantity == LOSS:
        return _loss_differences(many, reference, steps)
    found = []
    arbitrary: dict[int, set[int]] = {}  # by optimizer, the parameters that followed rounding errors alone so far
    for step in steps:
        ours, theirs = many.main.steps[step], reference.main.steps[step]
        names = parameter_names(many.main, ours)
        tensors = tensors_of(ours, quantity), tensors_of(theirs, quantity)
        if quantity == PARAMETERS:
            fresh = _of_rounding_alone(ours, theirs)
            left_out = arbitrary[ours.optimizer] = arbitrary.get(ours.optimizer, fresh) & fresh
            tensors = _without(tensors[0], left_out), _without(tensors[1], left_out)
        found.append(_tensor_difference(step, names, *tensors))
    return found


def _without(tensors: Sequence[Fingerprint | None], left_out: set[int]) -> list[Fingerprint | None]:
    return [None if i in left_out else tensor for i, tensor in enumerate(tensors)]


def _of_rounding_alone(ours: OptimizerStep, theirs: OptimizerStep) -> set[int]:
    """Return the parameters of which the gradient is rounding alone, which Adam makes a step of any size."""
    if ours.dtype != "float64":
        return set()
    norms = [[abs(gradient[0]) if gradient else 0.0 for gradient in step.gradients] for step in (ours, theirs)]
    largest = max((norm for of_run in norms for norm in of_run), default=0.0)
    return {i for i, pair in enumerate(zip(*norms)) if all(0.0 < norm <= ROUNDING * largest for norm in pair)}


def tensors_of(step: OptimizerStep, quantity: str) -> Sequence[Fingerprint | None]:
    """Return the gradients or the parameters of a step."""
    return step.gradients if quantity == GRADIENTS else step.parameters


def first_difference(runs: Runs, quantity: str, tolerance: float) -> StepDifference | None:
    """Return the first difference that is larger than `tolerance`, and than what rounding alone may have grown to."""
    found = differences(runs, quantity)
    allowed = allowed_sizes(runs, quantity, tolerance, len(found))
    return next((one for one, most in zip(found, allowed) if one.size > most), None)


def allowed_sizes(runs: Runs, quantity: str, tolerance: float, steps: int) -> list[float]:
    """Return, by step, the largest difference that is rounding: `tolerance`, or what it may have grown to."""
    factor = MARGIN if is_as_is(runs) else GROWN
    grown = [factor * size for size in rounding_growth(runs, quantity)]
    if grown and not is_as_is(runs):
        grown = [math.inf if is_grown else size for size, is_grown in zip(grown, steps_of_rounding(runs))]
    if is_as_is(runs):
        tolerance = max(least_tolerance(runs["many"]), tolerance)
    rest = grown[-1:] if is_as_is(runs) and grown else [tolerance]
    return [max(tolerance, size) for size in [*grown[:steps], *rest * (steps - len(grown))]]


def first_apart(runs: Runs, quantity: str, tolerance: float) -> StepDifference | None:
    """Return the first difference that is larger than `tolerance`, by rounding or not."""
    return next((one for one in differences(runs, quantity) if one.size > tolerance), None)


def rounding_growth(runs: Runs, quantity: str) -> list[float]:
    """Return, by step, how far one process is from itself so far when the samples of its batches have another order.

    Empty where that was not run, and for a loss that depends on the order.
    """
    if is_as_is(runs):
        return _growth_by_perturbation(runs, quantity)
    reordered = runs.get("reordered")
    if reordered is None or not reordered.num_steps:
        return []
    pair = {"many": reordered, "reference": runs["reference"]}
    if differences(pair, LOSS)[0].size > START or differences(pair, GRADIENTS)[0].size > MOST_BY_ROUNDING:
        return []
    return [*accumulate((one.size for one in differences(pair, quantity)), max)]


def steps_of_rounding(runs: Runs) -> list[bool]:
    """Return for each step whether all differences together are rounding that the network has multiplied."""
    reordered = {"many": runs["reordered"], "reference": runs["reference"]}
    return grown_steps(_largest_by_step(runs), _largest_by_step(reordered))


def _largest_by_step(runs: Runs) -> list[float]:
    quantities = (LOSS, GRADIENTS, PARAMETERS)
    return [max(one.size for one in step) for step in zip(*(differences(runs, quantity) for quantity in quantities))]


def _growth_by_perturbation(runs: Runs, quantity: str) -> list[float]:
    """Return, by step, the largest difference so far of any perturbed run: see rounding/own_precision.py."""
    pairs = {name: {"many": runs[name], "reference": runs["reference"]} for name in PERTURBED if name in runs}
    pairs = {name: pair for name, pair in pairs.items() if compared_steps(pair)}
    starts = {name: differences(pair, LOSS)[0].size for name, pair in pairs.items()}
    by_rounding = max((starts[name] for name in ROUNDED if name in starts), default=0.0)
    if starts.get("reordered", 0.0) > ORDER_COUNTS * max(by_rounding, least_tolerance(runs["reference"])):
        del pairs["reordered"]
    sizes = [[one.size for one in differences(pair, quantity)] for pair in pairs.values()]
    longest = max(map(len, sizes), default=0)
    largest = [max(own[step] for own in sizes if step < len(own)) for step in range(longest)]
    return [*accumulate([max(largest[:FIRST], default=0.0), *largest[1:]], max)]


def may_be_rounding(runs: Runs, tolerance: float) -> bool:
    """Return whether something differs, and so little in the first step in which it does that it may be rounding.

    What differs later follows from that, however much it is: a network can multiply a rounding error in each step.
    """
    quantities = (LOSS, GRADIENTS, PARAMETERS)
    first = {quantity: one for quantity in quantities if (one := first_difference(runs, quantity, tolerance))}
    start = min((one.step for one in first.values()), default=0)
    measured = [one for quantity, one in first.items() if one.step == start and quantity != PARAMETERS]
    return bool(first) and all(one.size < MOST_BY_ROUNDING for one in measured)


def _loss_differences(many: Run, reference: Run, steps: range) -> list[StepDifference]:
    pairs = []
    for step in steps:
        losses = rank_losses(many, step)
        pairs.append((math.fsum(losses) / len(losses), reference_loss(reference, step)))
    floor = SMALL * max((abs(b) for _, b in pairs if math.isfinite(b)), default=0.0)
    count = many.world_size
    return [
        StepDifference(step, relative_difference(a, b, floor), f"loss {a:.10g} with {count} processes, {b:.10g} with 1")
        for step, (a, b) in zip(steps, pairs)
    ]


def _tensor_difference(
    step: int,
    names: Sequence[str],
    ours: Sequence[Fingerprint | None],
    theirs: Sequence[Fingerprint | None],
) -> StepDifference:
    """Compare the norms and projections of a list of tensors; a tensor that only one side has differs wholly."""
    floor = SMALL * max((max(abs(x[0]) for x in pair if x) for pair in zip(ours, theirs) if any(pair)), default=0.0)
    sizes = [_pair_difference(a, b, floor) for a, b in zip(ours, theirs)]
    if len(ours) != len(theirs):
        return StepDifference(step, math.inf, f"{len(ours)} tensors with several processes, {len(theirs)} with 1")
    if not sizes:
        return StepDifference(step, 0.0, "no tensors")
    worst = max(range(len(sizes)), key=sizes.__getitem__)
    name = names[worst] if worst < len(names) else f"parameter {worst}"
    a, b = ours[worst], theirs[worst]
    shown = f"norm {a[0]:.10g}" if a else "none", f"{b[0]:.10g}" if b else "none"
    return StepDifference(step, sizes[worst], f"{name}: {shown[0]} with several processes, {shown[1]} with 1")


def _pair_difference(a: Fingerprint | None, b: Fingerprint | None, floor: float) -> float:
    if a is None or b is None:
        present = a or b
        return 0.0 if present is None or present[0] == 0.0 else math.inf
    scale = max(abs(a[0]), abs(b[0]), floor)
    if not all(map(math.isfinite, (*a, *b))):
        return 0.0 if [str(x) for x in a] == [str(x) for x in b] else math.inf
    return 0.0 if scale == 0.0 else max(abs(a[0] - b[0]), abs(a[1] - b[1])) / scale


def initial_fault(runs: Runs, tolerance: float) -> Finding | None:
    """Return a fault when the ranks start from different weights, or from others than one process."""
    many = runs["many"]
    fault = initial_disagreement(many)
    reference = runs.get("reference")
    if fault is not None or reference is None or not reference.ranks:
        return fault
    for ours, theirs in zip(many.main.of(InitialWeights), reference.main.of(InitialWeights)):
        names = parameter_names(many.main, ours)
        if ours.parameter_hash == theirs.parameter_hash:
            continue
        difference = _tensor_difference(0, names, ours.parameters, theirs.parameters)
        if difference.size > tolerance:
            return Finding("initial weights are not those of one process", value=difference.value)
    return None


def trains_by_hand(run: Run) -> bool:
    """Return whether gradients were computed and no optimizer made a step: nothing is known of the weights then."""
    return not run.main.steps and run.main.first(BackwardCall) is not None


def last_same_step(runs: Runs, tolerance: float) -> float | None:
    """Return until which step the ranks have the weights of one process: infinity where they never part.

    None where they never were the same, or where nothing is known of them.
    """
    if initial_fault(runs, tolerance) is not None or trains_by_hand(runs["many"]):
        return None
    apart = first_apart(runs, PARAMETERS, tolerance)
    return math.inf if apart is None else apart.step


def tensors_differ(a: Weights, b: Weights, tolerance: float) -> bool:
    """Return whether the weights of two events differ by more than `tolerance`."""
    if a.parameter_hash == b.parameter_hash:
        return False
    return _tensor_difference(0, [], a.parameters, b.parameters).size > tolerance


def fingerprints_differ(a: Sequence[Fingerprint], b: Sequence[Fingerprint], tolerance: float) -> bool:
    """Return whether two lists of tensors differ by more than `tolerance`."""
    return _tensor_difference(0, [], a, b).size > tolerance


def gradient_ratio(ours: OptimizerStep, theirs: OptimizerStep) -> float | None:
    """Return the factor between two steps' gradients when it is the same for all parameters."""
    pairs = [(a, b) for a, b in zip(ours.gradients, theirs.gradients) if a and b]
    largest = max((b[0] for _, b in pairs), default=0.0)
    pairs = [(a, b) for a, b in pairs if b[0] > SMALL * largest]
    if not pairs:
        return None
    ratios = [a[0] / b[0] for a, b in pairs]
    ratio = ratios[0]
    is_common = all(relative_difference(other, ratio) < SMALL for other in ratios)
    is_aligned = all(abs(a[1] - ratio * b[1]) <= 2 * SMALL * max(a[0], ratio * b[0]) for a, b in pairs)
    return ratio if is_common and is_aligned else None
