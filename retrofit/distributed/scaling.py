"""Batch size and learning rate over several GPUs: how many samples each rank takes, and what that does to the rate."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class BatchPlan:
    """How the samples of one optimizer step are shared out: `global_batch = micro_batch * world_size * accum_steps`."""

    micro_batch: int  # samples per rank in one forward pass
    world_size: int
    accum_steps: int
    reference_batch: int  # the batch size the learning rate was given for

    @property
    def global_batch(self) -> int:
        """Samples per optimizer step."""
        return self.micro_batch * self.world_size * self.accum_steps


def plan_batch(batch_size: int, world_size: int = 1, accum_steps: int = 1, batch: str = "per_gpu") -> BatchPlan:
    """Return the plan for `batch_size` samples per GPU and micro batch, or per optimizer step with batch="global".

    Raises ValueError for sizes below 1, and when a global batch cannot be shared out evenly.
    """
    for name, value in (("batch size", batch_size), ("accum_steps", accum_steps), ("world size", world_size)):
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
    if batch == "per_gpu":
        return BatchPlan(batch_size, world_size, accum_steps, batch_size)
    if batch != "global":
        raise ValueError(f"batch must be 'per_gpu' or 'global', got {batch!r}")
    parts = world_size * accum_steps
    if batch_size % parts:
        lower, upper = batch_size // parts * parts, (batch_size // parts + 1) * parts
        by = f"world size ({world_size})" + (f" x accum_steps ({accum_steps})" if accum_steps > 1 else "")
        use = f"{lower} or {upper}" if lower else str(upper)
        raise ValueError(f"global batch ({batch_size}) is not divisible by {by}; use {use}")
    return BatchPlan(batch_size // parts, world_size, accum_steps, batch_size)


def scale_lr(lr: float, global_batch: int, reference_batch: int, rule: str = "linear") -> float:
    """Return the learning rate for `global_batch` when `lr` was chosen for `reference_batch`.

    linear: `lr * global_batch / reference_batch` (Goyal et al. 2017, arXiv 1706.02677); sqrt: `lr * sqrt(ratio)`
    (Krizhevsky 2014, arXiv 1404.5997), usual for Adam; none: `lr`. Raises ValueError for an unknown rule.
    """
    ratio = global_batch / reference_batch
    if rule == "linear":
        return lr * ratio
    if rule == "sqrt":
        return lr * ratio**0.5
    if rule == "none":
        return lr
    raise ValueError(f"lr_scale must be 'linear', 'sqrt' or 'none', got {rule!r}")
