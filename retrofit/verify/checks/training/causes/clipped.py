"""Norms of gradients before they are clipped: between the ranks, and against those of one process."""

from __future__ import annotations

from collections.abc import Sequence

from retrofit.verify.checks.finding import Finding
from retrofit.verify.evidence import RankTrace, Runs, relative_difference
from retrofit.verify.trace.events import GradientClip

SAME, CLOSE = 1e-6, 1e-3  # relative: of two norms; of a factor that is meant to be the number of processes


def clipping_fault(runs: Runs, step: int) -> Finding | None:
    """Return what is wrong with the gradients that are clipped for a step, before they are."""
    many, reference = runs["many"], runs["reference"]
    of_ranks = [_norms(rank, step) for rank in many.ranks]
    alone = _norms(reference.main, step)
    world = many.world_size
    if world == 1 or not alone or any(len(norms) != len(alone) for norms in of_ranks):
        return None
    for norms, whole in zip(zip(*of_ranks), alone):
        if any(relative_difference(norm, norms[0]) > SAME for norm in norms):
            shown = ", ".join(f"{norm:.6g} on rank {rank}" for rank, norm in enumerate(norms))
            summary = "gradients are clipped before they are averaged over the ranks, by each rank's own norm"
            return Finding(summary, "RF202", step, f"norm before clipping: {shown}; {whole:.6g} with 1 process")
        factor = norms[0] / whole if whole else 0.0
        if any(relative_difference(factor, expected) < CLOSE for expected in (world, 1 / world)):
            summary = f"gradients are {factor:.4g} times those of one process before they are clipped, which hides it"
            value = f"norm before clipping: {norms[0]:.6g} with {world} processes, {whole:.6g} with 1"
            return Finding(summary, "RF301", step, value)
    return None


def hidden_by_clipping(runs: Runs, steps: Sequence[int]) -> Finding | None:
    """Return the first step in which clipping makes gradients those of one process that are not before."""
    return next((fault for step in steps if (fault := clipping_fault(runs, step))), None)


def _norms(rank: RankTrace, step: int) -> list[float]:
    return [event.norm for event in rank.of(GradientClip) if event.step == step]
