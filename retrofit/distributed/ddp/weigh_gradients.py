"""Weights on the gradients of a DDP model in an uneven last batch, by hooks around its forward pass; see batch.py."""

from __future__ import annotations

import copy
from collections.abc import MutableMapping
from typing import Any

import torch
from torch import nn

from ..batch import weight_of


def weigh_gradients(model: nn.Module) -> nn.Module:
    """Return `model`, whose parameters get gradients with the weight of the batch that is being trained on.

    What flows on through its inputs, into another model, is as it was: that one weighs for itself.
    """
    model.register_forward_pre_hook(_restore_behind_inputs, with_kwargs=True)
    model.register_forward_hook(_weigh_output, with_kwargs=True)
    return model


class _ScaleGradient(torch.autograd.Function):
    """The identity, with a factor on the gradient."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, factor: float) -> torch.Tensor:
        ctx.factor = factor
        return tensor.clone()  # of a view autograd would refuse what a script changes in place: loss *= 2

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return gradients[0] * ctx.factor, None


def _restore_behind_inputs(model: nn.Module, args: Any, kwargs: Any) -> Any:
    weight = weight_of(args, kwargs) if torch.is_grad_enabled() else 1.0
    return None if weight in (0.0, 1.0) else (_scaled(args, 1.0 / weight), _scaled(kwargs, 1.0 / weight))


def _weigh_output(model: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
    weight = weight_of(args, kwargs) if torch.is_grad_enabled() else 1.0
    return None if weight == 1.0 else _scaled(output, weight)


def _scaled(value: Any, factor: float) -> Any:
    """Return `value` with all tensors in it that need gradients scaled, in containers of its own types."""
    if isinstance(value, torch.Tensor):
        return _ScaleGradient.apply(value, factor) if value.requires_grad else value
    if isinstance(value, MutableMapping):
        scaled = copy.copy(value)
        scaled.update({name: _scaled(entry, factor) for name, entry in value.items()})
        return scaled
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_scaled(entry, factor) for entry in value))
    if isinstance(value, (list, tuple)):
        return type(value)(_scaled(entry, factor) for entry in value)
    return value
