"""The learning-rate schedule: linear warm-up, then cosine or polynomial decay, per optimizer step."""

from __future__ import annotations

import argparse
import math

import torch
from torch.optim.lr_scheduler import LambdaLR

POLY_POWER = 0.9  # of DeepLab (arXiv 1606.00915)


def learning_rate_factor(step: int, total_steps: int, warmup_steps: int, sched: str) -> float:
    """Return the factor on the peak rate at optimizer step `step` (0-based); 0 at the end of training."""
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    progress = min(1.0, (step - warmup_steps) / max(1, total_steps - warmup_steps))
    if sched == "poly":
        return (1.0 - progress) ** POLY_POWER
    return 0.5 * (1.0 + math.cos(math.pi * progress))


def build_scheduler(
    optimizer: torch.optim.Optimizer, lr: float, args: argparse.Namespace, steps_per_epoch: int, done_steps: int = 0
) -> LambdaLR:
    """Return the scheduler for peak rate `lr`, at step `done_steps`; call `step()` after every optimizer step.

    Reads `epochs`, `warmup_epoch` and `sched` of `args`. The rate is a closed form of the step, so a run that is
    resumed needs nothing but its position.
    """
    total_steps, warmup_steps = steps_per_epoch * args.epochs, round(args.warmup_epoch * steps_per_epoch)
    for group in optimizer.param_groups:
        group["lr"] = group["initial_lr"] = lr
    return LambdaLR(
        optimizer,
        lambda step: learning_rate_factor(step, total_steps, warmup_steps, args.sched),
        last_epoch=done_steps - 1,
    )
