"""The learning rate for the batch of all ranks."""

from __future__ import annotations

from typing import Any

import torch
from torch.optim import Optimizer

from .process.options import get_option
from .process.process_group import get_world_size

__all__ = ["scale_optimizer", "scaled_lr"]


def scaled_lr(lr: Any, accum_steps: int = 1) -> Any:
    """Return the learning rate for the batch of all ranks, for one that was chosen for the script's batch size.

    `lr`: a number, several, or a group of parameters. `--lr_scale`: linear, times `world_size * accum_steps` (Goyal et
    al. 2017, arXiv 1706.02677); sqrt, by its root (Krizhevsky 2014, arXiv 1404.5997); none, as with `--batch global`.
    """
    factor = get_world_size() * accum_steps
    if get_option("batch") == "global" or factor == 1:
        return lr
    if isinstance(lr, (list, tuple)):
        return type(lr)(scaled_lr(rate, accum_steps) for rate in lr)
    if isinstance(lr, dict):
        return {key: scaled_lr(rate, accum_steps) if key == "lr" and rate else rate for key, rate in lr.items()}
    return lr * {"linear": factor, "sqrt": factor**0.5, "none": 1}[get_option("lr_scale")]


def scale_optimizer(optimizer: Optimizer) -> Optimizer:
    """Return `optimizer` with every learning rate in it, also that of groups to come, put through `scaled_lr`."""
    for group in (optimizer.defaults, *optimizer.param_groups):
        if isinstance(group.get("lr"), (float, int, torch.Tensor)):  # Adafactor finds its own, a default may be missing
            group["lr"] = scaled_lr(group["lr"])
    return optimizer
