"""Diagnosis of losses, gradients and weights that are not those of one process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from retrofit.verify.checks.data.split import split_fault
from retrofit.verify.checks.finding import Finding, first_few
from retrofit.verify.checks.training.differences import (
    GRADIENTS,
    LOSS,
    PARAMETERS,
    ROUNDING,
    first_difference,
    gradient_ratio,
    rank_losses,
    reference_loss,
)
from retrofit.verify.checks.training.ranks_agree import disagreement
from retrofit.verify.checks.training.rates.learning_rate import SAME, lr_fault
from retrofit.verify.evidence import Run, Runs, relative_difference
from retrofit.verify.trace.events import (
    BatchSelection,
    Fingerprint,
    OptimizerFound,
    PairedRows,
    SimilarityProduct,
    UncontrolledDraw,
    ValidCount,
)

from .averaging import ENOUGH
from .changed_in_place import changed_between_steps
from .clipped import changed_before_step, clipping_fault
from .micro_batches import other_micro_batches
from .not_reached import not_reached
from .own_values import own_values, values_of_one_rank
from .traffic import traffic
from .untrained import other_untrained
from .weighted_mean import counts_by_losses

NAMES = {GRADIENTS: "gradients", PARAMETERS: "weights"}
IN_ONE_STEP = (PARAMETERS, GRADIENTS)  # gradients that differ explain the weights after the same step
MEANS = {"mean", "sum"}  # over the samples, from which the loss may be linear
OF_BUFFERS = 1e-6  # relative: what samples of one rank change is more, and what a network makes of rounding less
COUNT = "num_batches_tracked"  # of a BatchNorm layer
LOST_ROWS = "the loss compares the samples of a batch, and the gradients of other ranks' rows are lost"
CLOSE = 1e-3  # a factor that is meant to be the number of processes


Places = Callable[[], Sequence[str]]


def explain(runs: Runs, quantity: str, step: int, tolerance: float, coupled: Places = tuple) -> Finding:
    """Return the cause of the first difference of `quantity`, with a sentence that says where it comes from.

    `coupled()`: the places where the loss couples the samples of a batch.

    What went wrong before it or with it in the same step comes first: a loss can differ because weights did, weights
    because gradients did.
    """
    return (
        _from_ranks(runs, quantity, step)
        or _from_data(runs)
        or _from_earlier(runs, quantity, step, tolerance, coupled)
        or _from_rate(runs, quantity, step)
        or _from_scale(runs, step)
        or (None if quantity == LOSS else not_reached(runs, step))
        or _from_averaging(runs, quantity, step)
        or _from_clipping(runs, quantity, step)
        or other_untrained(runs, step)
        or other_buffers(runs, step, tolerance)
        or other_micro_batches(runs, step)
        or own_values(runs, step)
        or _from_batch_composition(runs, step, tolerance, coupled)
        or _unknown(runs, quantity, step)
    )


def _from_ranks(runs: Runs, quantity: str, step: int) -> Finding | None:
    fault = disagreement(runs["many"])
    if fault is None or fault.step is None:
        return None
    is_before = fault.step < step or (fault.step == step and quantity != LOSS)
    if fault.step == step and changed_between_steps(runs["many"], step) is not None:
        return Finding("the ranks compute with different weights in this step (see ranks_agree)", fault.cause)
    if not is_before:
        return None
    sentence = f"follows from the ranks' different weights after step {fault.step} (see ranks_agree)"
    return Finding(sentence, fault.cause)


def _from_data(runs: Runs) -> Finding | None:
    fault = split_fault(runs)
    return None if fault is None else Finding("follows from the data, which is not the same (see split)", fault.cause)


def _from_earlier(runs: Runs, quantity: str, step: int, tolerance: float, coupled: Places) -> Finding | None:
    """Return the explanation of what differed first: gradients or weights before this, or this step's gradients."""
    earlier = []
    for order, other in enumerate((GRADIENTS, PARAMETERS)):
        first = first_difference(runs, other, tolerance)
        if first is not None and (first.step < step or (first.step == step and (quantity, other) == IN_ONE_STEP)):
            earlier.append((first.step, order, other))
    if not earlier:
        return None
    first_step, _, other = min(earlier)
    root = explain(runs, other, first_step, tolerance, coupled)
    if root.summary.startswith("follows"):
        return root
    return replace(root, summary=f"follows from the {NAMES[other]} of step {first_step}: {root.summary}")


def _from_rate(runs: Runs, quantity: str, step: int) -> Finding | None:
    """Return the learning rate's fault when it differs before the first difference (in its step, for weights)."""
    ours, theirs = runs["many"].main.steps, runs["reference"].main.steps
    last = step + 1 if quantity == PARAMETERS else step
    for number in range(last):
        for a, b in zip(ours[number].lr, theirs[number].lr):
            if relative_difference(a, b) > SAME:
                fault = lr_fault(runs) if "one" in runs else None
                sentence = f"follows from the learning rate of step {number} (see lr)"
                if fault is None:
                    return Finding(sentence)
                if fault.undecided:
                    return Finding(f"{sentence}: {fault.summary}", undecided=True)
                return Finding(sentence, fault.cause)
    return None


def _from_scale(runs: Runs, step: int) -> Finding | None:
    """Return RF301 for a factor that is the number of processes, or RF303 where pairs explain it.

    Embeddings that are gathered without their gradient give each rank the right loss and the gradient of its own rows
    alone; the mean over ranks is then the whole gradient divided by the number of ranks.
    """
    many, reference = runs["many"], runs["reference"]
    world = many.world_size
    losses, alone = rank_losses(many, step), reference_loss(reference, step)
    by_gradient = gradient_ratio(many.main.steps[step], reference.main.steps[step])
    by_loss = sum(losses) / len(losses) / alone if alone else None
    if world == 1:
        return None
    if _is_close(by_gradient, 1 / world) and _is_close(by_loss, 1.0) and _has_pairs(runs, step):
        return Finding(LOST_ROWS, "RF303")
    for ratio in (by_gradient, by_loss):
        if _is_close(ratio, world) or _is_close(ratio, 1 / world):
            why = "" if ratio and ratio > 1 else ": DDP's mean divides a sum over all ranks by their number"
            return Finding(f"loss or gradients are {ratio:.4g} times those of one process{why}", "RF301")
    is_one_factor = by_gradient is not None and by_loss is not None and _is_close(by_gradient, by_loss)
    if is_one_factor and not _is_close(by_loss, 1.0) and not _has_pairs(runs, step):
        message = f"loss and gradients are {by_loss:.4g} times those of one process in this step: all of it is divided"
        return Finding(f"{message} by another number than that of the elements of all ranks", "RF302")
    return None


def other_buffers(runs: Runs, step: int, tolerance: float) -> Finding | None:
    """Return the buffers that were not those of one process before this step, where weights and gradients were."""
    many, reference = runs["many"].main, runs["reference"].main
    tolerance = max(tolerance, OF_BUFFERS)
    for number in range(step):
        ours, theirs = many.steps[number].buffers, reference.steps[number].buffers
        zero = ROUNDING * max((abs(buffer[0]) for buffer in theirs.values()), default=0.0)  # a mean that is zero
        apart = [name for name in ours if name in theirs and _buffers_differ(ours[name], theirs[name], zero, tolerance)]
        counted = [name for name in apart if name.endswith(COUNT)]
        if counted:
            text = "BatchNorm has seen another number of batches than on one process: a forward pass in training mode,"
            return Finding(f"{text} for a summary perhaps, that one of them leaves out ({first_few(counted)})")
        if apart:
            message = f"the model's buffers are computed from each rank's own samples: {first_few(apart)} (a codebook,"
            return Finding(f"{message} a running mean) differ from those of one process after step {number}", "RF401")
    return None


def _buffers_differ(ours: Fingerprint, theirs: Fingerprint, zero: float, tolerance: float) -> bool:
    scale = max(abs(ours[0]), abs(theirs[0]))
    return scale > zero and any(relative_difference(a, b, scale) > tolerance for a, b in zip(ours, theirs))


def _from_averaging(runs: Runs, quantity: str, step: int) -> Finding | None:
    """Return RF202 where a step's gradients are averaged before its last backward, whose own are left out, or never.

    Ranks that hold shards of the weights (FSDP) agree nevertheless.
    """
    main = runs["many"].main
    if quantity == LOSS or len(main.of(OptimizerFound)) > 1:
        return None
    parts = traffic(main)
    part, enough = parts[step], [one for one in parts if one.needed and one.reduced >= ENOUGH * one.needed]
    most = max((one.needed for one in enough), default=0)
    if part.backwards and part.reduced < (1 - ENOUGH) * most:
        return Finding(f"gradients are averaged in {len(enough)} of {len(parts)} steps, not in this one", "RF202")
    if part.backwards < 2 or not part.reduced_last < ENOUGH * part.needed <= part.reduced:
        return None
    return Finding(f"gradients are averaged before the last of {part.backwards} backward calls of the step", "RF202")


def _from_clipping(runs: Runs, quantity: str, step: int) -> Finding | None:
    return None if quantity == LOSS else clipping_fault(runs, step) or changed_before_step(runs, step)


def _is_close(ratio: float | None, expected: float) -> bool:
    return ratio is not None and relative_difference(ratio, expected) < CLOSE


def _has_pairs(runs: Runs, step: int) -> bool:
    """Return whether a loss compares samples: a rank may compare its own with those of all, one process does not."""
    ranks = [*runs["many"].ranks, *runs["reference"].ranks]
    return any(event.step == step for rank in ranks for event in rank.of(SimilarityProduct))


def _from_batch_composition(runs: Runs, step: int, tolerance: float, coupled: Places) -> Finding | None:
    """Return RF302, RF303 or RF309: a batch's loss is not a mean over its samples, or not over as many on each rank.

    A mean over unequal counts lies between the ranks' means; a loss that compares samples need not.
    """
    many = runs["many"]
    losses, alone = rank_losses(many, step), reference_loss(runs["reference"], step)
    margin = tolerance * max(map(abs, losses), default=0.0)
    is_between = min(losses) - margin <= alone <= max(losses) + margin
    differs = relative_difference(sum(losses) / len(losses), alone) > tolerance
    counts = _valid_counts(many, step)
    uneven = len(set(counts)) > 1 or len({rank.rows_per_step[step] for rank in many.ranks}) > 1
    pairs = Finding("the loss compares the samples of a batch, and each rank has its share of them only", "RF303")
    if _has_pairs(runs, step) and not (is_between and uneven):
        return pairs if differs else Finding(LOST_ROWS, "RF303")
    found = {event.op for rank in many.ranks for event in rank.of(BatchSelection) if event.step == step}
    selections = sorted(found - MEANS)
    if selections and not uneven:
        name = first_few(selections)
        return Finding(
            f"the loss compares the samples of a batch ({name}), and each rank has its share of them", "RF303"
        )
    pairings = many.main.of(PairedRows)
    of_data = {event.where.partition(" in ")[0] for event in pairings}
    coupled_lines = coupled() if (differs or uneven) and not _uncontrolled(runs) else []
    places = [place for place in coupled_lines if place not in of_data]
    if places:
        message = f"the loss couples the samples of a batch ({first_few(places)}), and each rank has its share of them"
        return Finding(message, "RF309")
    mixed = [event.where for event in pairings if not event.is_by_part]
    if mixed and not uneven:
        message = f"the samples of a batch are mixed with each other one by one ({mixed[0]}): a rank mixes its own,"
        return Finding(f"{message} as with a smaller batch", undecided=True)
    if uneven:
        shown = ", ".join(f"{one:g}" for one in counts or [rank.rows_per_step[step] for rank in many.ranks])
        return Finding(f"each rank averages over its own elements ({shown}), and DDP averages those means", "RF302")
    if not differs or _uncontrolled(runs):
        return None
    of_one_rank = values_of_one_rank(runs, step)
    if of_one_rank is not None:
        return of_one_rank
    share = counts_by_losses(losses, alone)
    if share is not None:
        message = f"each rank averages over its own elements, of which rank 0 has {share[0]} of {share[1]}"
        return Finding(f"{message}: so weighted, the ranks' losses give that of one process", "RF302")
    own = _own_buffers(many, step)
    if own:
        return Finding(f"the ranks compute with other values of buffers: {first_few(own)}", "RF401")
    if not is_between:
        return pairs
    if found:
        message = f"the loss is not linear in what it makes of all samples of a batch together ({first_few(found)} over"
        return Finding(f"{message} them), and each rank has its share of them", "RF309")
    return Finding("the loss of one process lies between those of the ranks, and is not their mean")


def _own_buffers(many: Run, step: int) -> list[str]:
    """Return the buffers of the model that are not the same on all ranks in a step."""
    first, *others = (rank.steps[step].buffers for rank in many.ranks)
    return [name for name, buffer in first.items() if any(str(other.get(name)) != str(buffer) for other in others)]


def _valid_counts(many: Run, step: int) -> list[float]:
    """Return the valid elements of each rank's losses in a step; empty where none were counted."""
    counts = [[event.count for event in rank.of(ValidCount) if event.step == step] for rank in many.ranks]
    if not all(counts):
        return []
    # Two ranks can have the same sum and other micro batches: each micro batch is a mean of its own.
    rows = list(zip(*counts))
    return next((list(row) for row in rows if len(set(row)) > 1), [sum(own) for own in counts])


def _unknown(runs: Runs, quantity: str, step: int) -> Finding:
    draws = _uncontrolled(runs)
    if draws:
        return Finding(f"random numbers that belong to no sample are drawn at {draws[0].where}", undecided=True)
    if quantity == LOSS:
        return Finding("no known cause explains it")
    return Finding(f"the loss of step {step} is that of one process, and no known cause explains the difference")


def _uncontrolled(runs: Runs) -> Sequence[UncontrolledDraw]:
    """Return the random draws of the training that could not be tied to samples."""
    found = []
    for name in ("many", "reference"):
        for rank in runs[name].ranks:
            start = rank.training[0].begin.seconds if rank.training else 0.0
            found += [event for event in rank.of(UncontrolledDraw) if event.seconds >= start]
    return found
