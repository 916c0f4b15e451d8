"""The parts of a training step that torch itself calls: backward passes and optimizers."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from retrofit.why.marks import BEGIN, END, Marks

BACKWARD, OPTIMIZER = "backward", "optimizer"


def watch_training(marks: Marks, on_step: Callable[[], None]) -> None:
    """Mark backward passes and the steps of all optimizers; `on_step` is called after each of these."""
    original = torch.autograd.backward

    @functools.wraps(original)
    def backward(*args: Any, **kwargs: Any) -> None:
        with marks.during(BACKWARD):
            original(*args, **kwargs)

    torch.autograd.backward = backward

    def before(*unused: Any) -> None:
        marks.add(BEGIN, OPTIMIZER)

    def after(*unused: Any) -> None:
        marks.add(END, OPTIMIZER)
        on_step()

    register_optimizer_step_pre_hook(before)
    register_optimizer_step_post_hook(after)
