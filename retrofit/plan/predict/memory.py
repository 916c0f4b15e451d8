"""Memory of a rank under each strategy, in bytes.

Parameters, gradients and optimizer state are those of Rajbhandari et al. 2020 (arXiv 1910.02054); what is kept beyond
that theory (DDP's buckets, gathered layers, masters) is what docs/memory.md has measured.
"""

from __future__ import annotations

from dataclasses import dataclass

from retrofit.plan.profile.profile import Profile


@dataclass(frozen=True)
class Memory:
    """Bytes of a rank at the peak of a step."""

    parameters: float
    gradients: float
    optimizer: float
    buckets: float  # copies of gradients, and layers that are gathered
    activations: float  # for the samples of a rank
    other: float  # measured beyond these on a GPU: temporary tensors, batches; 0 where nothing was measured

    @property
    def total(self) -> float:
        return self.states + self.activations + self.other

    @property
    def states(self) -> float:
        return self.parameters + self.gradients + self.optimizer + self.buckets


def memory_of(profile: Profile, strategy: str, ranks: int) -> Memory:
    """Return the memory under a strategy: ddp, fsdp, fsdp grad-op, zero1, zero2 or zero3."""
    whole, state = float(profile.gradient_bytes), float(profile.facts["optimizer_bytes"])
    frozen = float(profile.facts["frozen_bytes"] + profile.facts["buffer_bytes"])
    activations = float(profile.facts["activation_bytes"])
    peak = profile.facts.get("peak_bytes")
    other = max(0.0, peak - (2 * whole + state + frozen + activations)) if peak else 0.0
    largest = float(max(profile.layers, default=0))
    masters = 4.0 * sum(profile.facts["elements"])  # float32 weights that DeepSpeed's optimizer has of its own
    kept: dict[str, tuple[float, float, float, float]] = {
        "ddp": (whole, whole, state, whole if ranks > 1 else 0.0),
        "fsdp": (whole / ranks, whole / ranks, state / ranks, min(3 * largest, 2 * whole)),
        "fsdp grad-op": (whole, whole / ranks, state / ranks, whole / ranks + min(largest, whole)),
        "zero1": (whole, whole, (state + masters) / ranks, 0.0),
        "zero2": (whole, whole / ranks, (state + masters) / ranks, min(2 * largest, whole)),
        "zero3": (whole / ranks, whole / ranks, (state + masters) / ranks, min(3 * largest, 2 * whole)),
    }
    parameters, gradients, optimizer, buckets = kept[strategy]
    return Memory(parameters + frozen, gradients, optimizer, buckets, activations, other)


def largest_batch(memory: Memory, samples: float, capacity: float) -> int:
    """Return how many samples of a rank fit: what the step keeps for a sample, and what it keeps in any case."""
    each = (memory.activations + memory.other) / samples if samples else 0.0
    return max(0, int((capacity - memory.states) / each)) if each else 0
