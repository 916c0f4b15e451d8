"""Gradients before they are clipped or changed otherwise: between the ranks, and against those of one process."""

from __future__ import annotations

from collections.abc import Sequence

from retrofit.verify.checks.finding import Finding
from retrofit.verify.evidence import RankTrace, Run, Runs, relative_difference
from retrofit.verify.trace.events import BackwardCall, BackwardGradients, GradientClip

SAME, CLOSE = 1e-6, 1e-3  # relative: of two norms; of a factor that is meant to be the number of processes
ONE_FACTOR = 1e-5  # relative: of what two ranks multiply by; rounding changes it less


def clipping_fault(runs: Runs, step: int) -> Finding | None:
    """Return what is wrong with the gradients that are clipped for a step, before they are."""
    many, reference = runs["many"], runs["reference"]
    of_ranks = [_norms(rank, step) for rank in many.ranks]
    alone = _norms(reference.main, step)
    world = many.world_size
    if world == 1 or not alone or any(len(norms) != len(alone) for norms in of_ranks):
        return None
    for number, (norms, whole) in enumerate(zip(zip(*of_ranks), alone)):
        if any(relative_difference(norm, norms[0]) > SAME for norm in norms):
            shown = ", ".join(f"{norm:.6g} on rank {rank}" for rank, norm in enumerate(norms))
            value = f"norm before clipping: {shown}; {whole:.6g} with 1 process"
            if _are_averaged(many, step) and _is_after_backward(many.main, step, number):
                summary = "each rank clips another part of the averaged gradients, by the norm of that part alone"
                return Finding(summary, "RF216", step, value)
            summary = "gradients are clipped before they are averaged over the ranks, by each rank's own norm"
            return Finding(summary, "RF202", step, value)
        factor = norms[0] / whole if whole else 0.0
        if any(relative_difference(factor, expected) < CLOSE for expected in (world, 1 / world)):
            summary = f"gradients are {factor:.4g} times those of one process before they are clipped, which hides it"
            value = f"norm before clipping: {norms[0]:.6g} with {world} processes, {whole:.6g} with 1"
            return Finding(summary, "RF301", step, value)
    return None


def _are_averaged(run: Run, step: int) -> bool:
    """Return whether a backward leaves the same whole gradients on all ranks, in this step or in the last known."""
    last = [[event for event in rank.of(BackwardGradients) if event.step <= step][-1:] for rank in run.ranks]
    left = [event for events in last for event in events]
    is_known = len(left) == run.world_size and not any(event.is_sharded for event in left)
    return is_known and all(_is_mean([event], left[0]) for event in left)


def _is_after_backward(rank: RankTrace, step: int, number: int) -> bool:
    """Return whether the last backward of a step comes before one of its clippings, and not after it."""
    events = [one for one in rank.events if isinstance(one, (BackwardCall, GradientClip)) and one.step == step]
    clips = [place for place, event in enumerate(events) if isinstance(event, GradientClip)]
    return not any(isinstance(event, BackwardCall) for event in events[clips[number] :])


def changed_before_step(runs: Runs, step: int) -> Finding | None:
    """Return a fault where gradients are those of one process after the backward, and others in the step.

    Each rank may scale them by a number of its own, or change what is averaged afterwards.
    """
    many = runs["many"]
    found = [_left(rank, step) for rank in (*many.ranks, runs["reference"].main)]
    left = [event for event in found if event is not None]
    if many.world_size == 1 or len(left) < len(found):
        return None
    *ours, alone = left
    scaled = own_factors(many, step) or _other_factors(ours, alone, step)
    if scaled is not None:
        return scaled
    if not any(event.is_sharded for event in left) and _is_mean(ours, alone) and not _is_mean(ours, ours[0]):
        summary = "each rank changes its gradients after the backward, before they are averaged over the ranks"
        return Finding(summary, "RF202", step)
    return None


def own_factors(run: Run, step: int) -> Finding | None:
    """Return a fault where each rank multiplies its gradients by another number between the backward and a step.

    Where gradients are not sharded, the ranks must have the same ones before: else it follows that norms differ.
    """
    found = [_left(rank, step) for rank in run.ranks]
    left = [event for event in found if event is not None]
    factors = [event.factor for event in left if event.factor is not None]
    if len(factors) < run.world_size or all(relative_difference(one, factors[0]) <= ONE_FACTOR for one in factors):
        return None
    if not any(event.is_sharded for event in left) and not all(_is_mean([event], left[0]) for event in left):
        return None
    shown = ", ".join(f"{factor:.6g} on rank {rank}" for rank, factor in enumerate(factors))
    summary = "each rank multiplies its gradients by a number of its own before the step, as by a norm of its own"
    return Finding(summary, "RF216", step, f"times {shown}")


def _other_factors(ours: Sequence[BackwardGradients], alone: BackwardGradients, step: int) -> Finding | None:
    """Return a fault where all ranks multiply the shards of the gradients of one process by a number that it does not.

    The squares of the shards' norms add up to those of the whole.
    """
    factors = [event.factor for event in (*ours, alone) if event.factor is not None]
    if len(factors) <= len(ours) or not all(event.is_sharded for event in ours) or not _add_up(ours, alone):
        return None
    *of_ranks, of_one = factors
    if all(relative_difference(factor, of_one) <= ONE_FACTOR for factor in of_ranks):
        return None
    shown = ", ".join(f"{factor:.6g} on rank {rank}" for rank, factor in enumerate(of_ranks))
    summary = (
        "each rank multiplies its shards of the gradients by another number than one process, as by their own norm"
    )
    return Finding(summary, "RF216", step, f"times {shown}; {of_one:.6g} on one process")


def _add_up(ours: Sequence[BackwardGradients], whole: BackwardGradients) -> bool:
    """Return whether the ranks' shards can be those of the gradients of one process."""
    for *own, expected in zip(*(event.gradients for event in ours), whole.gradients):
        norm = sum(one[0] ** 2 for one in own if one is not None) ** 0.5
        if relative_difference(norm, expected[0] if expected else 0.0) > SAME:
            return False
    return True


def _left(rank: RankTrace, step: int) -> BackwardGradients | None:
    return next((event for event in rank.of(BackwardGradients) if event.step == step), None)


def _is_mean(ours: Sequence[BackwardGradients], whole: BackwardGradients) -> bool:
    """Return whether the mean of the ranks' gradients is another gradient: so is that of their projections."""
    for *own, expected in zip(*(event.gradients for event in ours), whole.gradients):
        known = [one for one in own if one is not None]
        if expected is None or len(known) < len(own):
            if expected is not None or known:
                return False
            continue
        mean = sum(one[1] for one in known) / len(known)
        if abs(mean - expected[1]) > SAME * max(expected[0], *(one[0] for one in known)):
            return False
    return True


def hidden_by_clipping(runs: Runs, steps: Sequence[int]) -> Finding | None:
    """Return the first step in which clipping makes gradients those of one process that are not before."""
    return next((fault for step in steps if (fault := clipping_fault(runs, step))), None)


def _norms(rank: RankTrace, step: int) -> list[float]:
    return [event.norm for event in rank.of(GradientClip) if event.step == step]
