"""FSDP and ZeRO: parameters or gradients are divided over the ranks, and gathered for the computation."""

from __future__ import annotations

from retrofit.plan.link.link import ALL_GATHER, REDUCE_SCATTER, Link
from retrofit.plan.link.strategies import FULL, GRADIENTS
from retrofit.plan.profile.profile import Profile

from .ddp import buckets
from .overlap import sharded_passes, with_calls


def fsdp_added(profile: Profile, link: Link, ranks: int, is_gathered_again: bool) -> float:
    """Return what FSDP adds to a step, in seconds; `is_gathered_again`: in the backward pass (FULL_SHARD)."""
    measured = link.measured
    kind = "SGD" if profile.facts["optimizers"] == ["SGD"] else "AdamW"
    update = profile.optimizer * (1 / ranks - 1) + len(profile.facts["gradients"]) * measured.update.get(kind, 0.0)
    layers = profile.layers
    if link.is_blocking:
        strategy = FULL if is_gathered_again else GRADIENTS
        tensors = sum(len(layer) - measured.tensors for layer in profile.facts["layers"])
        other = sum(
            _calls(link, size, ranks, is_gathered_again) - _calls(link, size, link.measured_ranks, is_gathered_again)
            for size in layers
        )
        return (
            sum(measured.of(strategy, size) for size in layers)
            + tensors * measured.for_tensor[strategy]
            + other
            + update
        )
    gathers = [link.seconds(ALL_GATHER, size, ranks) for size in layers]
    scatters = [link.seconds(REDUCE_SCATTER, size, ranks) for size in layers]
    of_layers = [size / profile.gradient_bytes for size in layers]
    last = profile.backward / profile.backwards
    forward, backward = [share * profile.forward for share in of_layers], [share * last for share in of_layers]
    passes = sharded_passes(forward, backward, gathers, scatters, is_gathered_again, link.overlap)
    return passes - profile.forward - last + update


def zero_added(profile: Profile, link: Link, ranks: int) -> float:
    """Return what ZeRO-1 or ZeRO-2 adds: gradients go to their owners, and updated parameters come back."""
    last = profile.backward / profile.backwards
    calls = [(min(last, at), link.seconds(REDUCE_SCATTER, size, ranks)) for at, size in buckets(profile)]
    back = link.seconds(ALL_GATHER, profile.gradient_bytes, ranks)
    return with_calls(last, calls, link.overlap) - last + back + profile.optimizer * (1 / ranks - 1)


def _calls(link: Link, size: float, ranks: int, is_gathered_again: bool) -> float:
    gathers = 2 if is_gathered_again else 1
    return gathers * link.seconds(ALL_GATHER, size, ranks) + link.seconds(REDUCE_SCATTER, size, ranks)
