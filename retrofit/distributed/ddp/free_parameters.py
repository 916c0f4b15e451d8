"""Average the gradient of a trained tensor that is part of no model: weights of several losses, learnt centers."""

from __future__ import annotations

from typing import TypeVar

import torch

from ..batch import weight_of
from ..collectives import broadcast_object, reduce_mean
from ..evaluation import is_sharing
from ..process_group import is_distributed

T = TypeVar("T", bound=torch.Tensor)


def distribute_parameter(tensor: T) -> T:
    """Return `tensor`, which an optimizer changes, with rank 0's values and gradients averaged over all ranks.

    For what lies outside the models of `distribute_model`. In an uneven last batch the ranks count by their numbers
    of samples. Outside a group, and for a tensor that needs no gradient, nothing happens. Collective: every rank, and
    every backward that reaches the tensor.
    """
    hooks = getattr(tensor, "_backward_hooks", None) or {}
    if not is_distributed() or not tensor.requires_grad or any(isinstance(h, _Average) for h in hooks.values()):
        return tensor
    with torch.no_grad():
        tensor.copy_(broadcast_object(tensor.detach().cpu()))
    tensor.register_hook(_Average())
    return tensor


class _Average:
    """A hook that takes the mean over the ranks of a gradient."""

    __torch_unserializable__ = True  # so torch.save leaves it out without a warning

    def __call__(self, gradient: torch.Tensor) -> torch.Tensor:
        if is_sharing():  # an evaluation with gradients, which the other ranks are not in
            return gradient
        weight = weight_of()
        return reduce_mean(gradient if weight == 1.0 else gradient * weight)
