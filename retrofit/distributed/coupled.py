"""Losses that couple the samples of a batch (Dice, IoU, the root of a mean), computed over the batch of all ranks.

Such a loss is a function f(S) of sums S over the batch. Let s_r be the sum over rank r's share, so S = sum_r s_r. One
process has the gradient f'(S) * sum_r ds_r. DDP averages: with g_r the gradient on rank r it uses (1/W) sum_r g_r.

`batch_sum` returns S on every rank. Its backward sums what arrives over ranks: each rank has computed its own loss L_q
from S, so s_r gets sum_q dL_q/dS, and DDP's average is (1/W) sum_r (sum_q dL_q/dS) ds_r: the gradient of the mean of
the ranks' losses, whatever they are. Where all ranks have L_q = f(S) this is f'(S) sum_r ds_r, that of one process;
terms of a rank's own samples next to it, a cross entropy, are averaged as before.

In an uneven batch `distribute_model` weighs what flows back into the model by w_r = W * own / all, which makes a mean
of means right. S gets what each loss counts, sum_q w_q dL_q/dS, and the w_r that comes later must not touch it: the
backward multiplies by w_q and divides by w_r. Of a repeated sample (w_r = 0) neither s_r nor the loss counts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from .batch_weight import weight_of
from .process_group import get_rank, get_world_size
from .reduce import gather_objects, reduce_tensor_sum
from .sharing import is_sharing


class _SumOverRanks(torch.autograd.Function):
    """The sum over ranks; see the module for the gradient. `weight`: that of this rank's batch."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, weight: float) -> torch.Tensor:
        ctx.weight = weight
        return reduce_tensor_sum(tensor * 0 if weight == 0 else tensor)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return reduce_tensor_sum(gradients[0].contiguous() * ctx.weight) / (ctx.weight or 1.0), None


def batch_sum(tensor: torch.Tensor) -> torch.Tensor:
    """Return the sum over all ranks of a sum over this rank's samples, with gradients: a numerator, a denominator.

    Collective: every rank, in training, forward and backward. Without gradients, in an evaluation, it is `tensor`.
    """
    return _SumOverRanks.apply(tensor, weight_of()) if _is_shared() else tensor


def batch_mean(tensor: torch.Tensor) -> torch.Tensor:
    """Return the mean over the samples of all ranks of a mean over this rank's samples, with gradients.

    Collective: every rank, in training, forward and backward. Without gradients, in an evaluation, it is `tensor`.
    """
    if not _is_shared():
        return tensor
    weight = weight_of()
    return _SumOverRanks.apply(tensor * (weight / get_world_size()), weight)


def whole_batch_loss(criterion: Callable[..., Any]) -> Any:
    """Return `criterion` computed on every rank over the samples of all of them, for one that cannot be taken apart.

    Of its arguments every tensor with an entry per sample is gathered, with gradients; so it costs the memory of the
    whole batch's outputs. It suits a loss that does not depend on the order of the samples. Collective: every rank, in
    training. Without gradients, in an evaluation, it is the loss of this rank's batch.
    """
    return WholeBatch(criterion)


class WholeBatch(nn.Module):
    """See `whole_batch_loss`. Attributes are those of the criterion."""

    def __init__(self, criterion: Callable[..., Any]) -> None:
        super().__init__()
        self.criterion = criterion

    def forward(self, *inputs: Any, **options: Any) -> Any:
        tensors = [value for value in (*inputs, *options.values()) if isinstance(value, torch.Tensor) and value.dim()]
        if not _is_shared() or not any(tensor.requires_grad for tensor in tensors):
            return self.criterion(*inputs, **options)
        length, weight = len(tensors[0]), weight_of()
        lengths = gather_objects(0 if weight == 0 else length)

        def gathered(value: Any) -> Any:
            is_of_batch = isinstance(value, torch.Tensor) and value.dim() and len(value) == length
            return _gathered(value, lengths, weight) if is_of_batch else value

        return self.criterion(*map(gathered, inputs), **{name: gathered(value) for name, value in options.items()})

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.__dict__.get("criterion") or self._modules["criterion"], name)


def _gathered(tensor: torch.Tensor, lengths: list[int], weight: float) -> torch.Tensor:
    """Return the rows of all ranks in rank order: a sum of tensors that are 0 but for one rank's rows."""
    rank = get_rank()
    own = tensor[: lengths[rank]]
    before, after = sum(lengths[:rank]), sum(lengths[rank + 1 :])
    rows = [own.new_zeros(before, *own.shape[1:]), own, own.new_zeros(after, *own.shape[1:])]
    whole = torch.cat(rows)
    if not whole.is_floating_point():
        return reduce_tensor_sum(whole.long() if whole.dtype == torch.bool else whole).to(tensor.dtype)
    return _SumOverRanks.apply(whole, weight)


def _is_shared() -> bool:
    return get_world_size() > 1 and torch.is_grad_enabled() and not is_sharing()
