"""Losses over the batch of all ranks: what to call backward on, what to divide by, criteria of libraries.

DDP averages the gradients of the ranks, so the mean over a rank's part of the batch is right where the parts are even.
A sum needs a factor, a mean over valid elements the number of all ranks, and a loss that couples samples their sums.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from .batch import reduce_last_loss, reduce_loss, reduce_summed_loss, weight_of
from .collectives import gather_objects, reduce_sum, reduce_tensor_sum
from .environment import read_environment
from .evaluation import is_sharing
from .options import get_option
from .process_group import get_rank, get_world_size, is_distributed

__all__ = [
    "batch_count",
    "batch_mean",
    "batch_sum",
    "distribute_criterion",
    "global_batch",
    "rank_share",
    "reduce_last_loss",
    "reduce_loss",
    "reduce_summed_loss",
    "sum_loss",
    "whole_batch_loss",
]


def sum_loss(loss: torch.Tensor) -> torch.Tensor:
    """Return what to call backward on for a loss that is a sum over the samples: DDP averages gradients over ranks.

    Where only one of several terms is a sum, it makes the term one that `reduce_loss` brings together as it does the
    others. Without gradients, in an evaluation, it is `loss` itself.
    """
    world_size = get_world_size()
    if world_size == 1 or not torch.is_grad_enabled() or is_sharing():
        return loss
    return loss * (world_size / (weight_of() or 1.0))


def batch_count(count: Any) -> Any:
    """Return the sum over ranks of a count of this rank's batch: its samples, or those of its elements that matter.

    A loss divided by it is to be a mean, or `rank_share` of it the divisor of a sum. Collective: every rank, in
    training; without gradients, in an evaluation, it is `count` itself.
    """
    if get_world_size() == 1 or not torch.is_grad_enabled() or is_sharing():
        return count
    own = count * 0 if weight_of() == 0 else count  # a sample that was repeated to give every rank one
    if isinstance(count, torch.Tensor):
        return reduce_tensor_sum(own)
    return type(count)(reduce_sum([own])[0])


def global_batch(batch_size: Any) -> Any:
    """Return how many samples all ranks have in a batch, for a loss that is divided by the batch size of the settings.

    With `--batch global` that is `batch_size` itself. Without gradients, in an evaluation, it is `batch_size`.
    """
    is_whole = get_option("batch") == "global" or not torch.is_grad_enabled()
    return batch_size if is_whole else batch_size * get_world_size()


def rank_share(count: Any) -> Any:
    """Return by what a rank divides its sum so that DDP's average of gradients is that of a mean over all ranks.

    `count`: of the whole batch, see `batch_count`. Without gradients, in an evaluation, it is `count` itself.
    """
    world_size = get_world_size()
    if world_size == 1 or not torch.is_grad_enabled() or is_sharing():
        return count
    if isinstance(count, torch.Tensor) and not count.dim():
        count = count.double()  # a third is not exact; of a single number the type of the loss stays
    return count * (weight_of() or 1.0) / world_size


# What the loss functions of torch take behind input and target, in this order.
_OLD = ("size_average", "reduce")
POSITIONAL = {
    "cross_entropy": ("weight", "size_average", "ignore_index", "reduce", "reduction", "label_smoothing"),
    "nll_loss": ("weight", "size_average", "ignore_index", "reduce", "reduction"),
    "binary_cross_entropy": ("weight", *_OLD, "reduction"),
    "binary_cross_entropy_with_logits": ("weight", *_OLD, "reduction", "pos_weight"),
    "mse_loss": (*_OLD, "reduction", "weight"), "l1_loss": (*_OLD, "reduction", "weight"),
    "smooth_l1_loss": (*_OLD, "reduction", "beta"), "huber_loss": ("reduction", "delta", "weight"),
}  # fmt: skip
OF_CLASSES = {"CrossEntropyLoss", "NLLLoss", "cross_entropy", "nll_loss"}  # others divide by the number of elements
OF_ELEMENTS = {
    "MSELoss", "L1Loss", "SmoothL1Loss", "HuberLoss", "BCELoss", "BCEWithLogitsLoss", "mse_loss", "l1_loss",
    "smooth_l1_loss", "huber_loss", "binary_cross_entropy", "binary_cross_entropy_with_logits",
}  # fmt: skip


def distribute_criterion(criterion: Callable[..., torch.Tensor]) -> Any:
    """Return a loss over the batch of all ranks; outside a group, `criterion` itself.

    `criterion`: a loss of torch with reduction="mean" that compares an output and a target by class (nn.NLLLoss) or
    number by number (nn.MSELoss), its function or a partial of that; what is none of these, one of several losses that
    a script chooses from, is returned as it is. DDP averages the gradients of what it returns to those of the loss
    over all ranks; the mean over ranks of the values is that loss. Of an output without gradients it is the loss of
    this rank's batch alone. It may be made in front of setup_distributed, in a table of losses. Collective: every
    rank, in training.
    """
    is_one_of_several = is_distributed() or read_environment(os.environ).world_size > 1
    return WholeBatchLoss(criterion) if is_one_of_several and _counts(criterion) else criterion


def _counts(criterion: Any) -> bool:
    """Return whether a criterion divides by the number of elements, or of the labels that count, or their weights."""
    if isinstance(criterion, partial):
        return _counts(criterion.func) and not criterion.args and _is_mean(criterion.keywords)
    is_of_torch = type(criterion).__module__.startswith("torch.nn.") or inspect.isroutine(criterion)
    return is_of_torch and _name_of(criterion) in OF_CLASSES | OF_ELEMENTS and _is_mean(vars(criterion))


def _is_mean(options: dict[str, Any]) -> bool:
    legacy = (options.get(name) for name in ("size_average", "reduce"))
    return options.get("reduction", "mean") == "mean" and False not in legacy


class WholeBatchLoss(nn.Module):
    """See `distribute_criterion`. Attributes are those of the criterion."""

    def __init__(self, criterion: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.criterion = criterion

    def forward(self, output: torch.Tensor, target: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        is_evaluation = is_sharing() or not torch.is_grad_enabled() or not output.requires_grad
        if is_evaluation:  # of which ranks may have other numbers
            return self.criterion(output, target, *args, **kwargs)
        if not is_distributed() or not _is_mean(kwargs):
            return self.criterion(output, target, *args, **kwargs)
        total, options = self._sum(output, target, *args, **kwargs)
        # By samples, as the model's gradients are weighed, even where the output has words.
        share = weight_of()  # 0 for a sample that was repeated to give every rank one
        if _name_of(self.criterion) in OF_CLASSES:
            own = _count(output, target, options.get("weight"), options.get("ignore_index", -100))
        else:
            own = torch.tensor(torch.broadcast_tensors(output, target)[0].numel(), dtype=torch.float64)
            own = own.to(output.device)
        own = own * float(share > 0)
        count = reduce_tensor_sum(own)
        return total * (get_world_size() * float(share > 0) / (share or 1.0)) / count

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.__dict__.get("criterion") or self._modules["criterion"], name)

    def _sum(self, output: torch.Tensor, target: torch.Tensor, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, dict]:
        """Return the loss summed over the batch, and the options that say what counts."""
        criterion: Any = self.criterion
        if isinstance(criterion, partial):
            criterion, kwargs = criterion.func, {**criterion.keywords, **kwargs}
        if inspect.isroutine(criterion):
            options = {**dict(zip(POSITIONAL[_name_of(criterion)], args)), **kwargs}
            options = {name: value for name, value in options.items() if name not in _OLD}
            return criterion(output, target, **{**options, "reduction": "sum"}), options
        reduction, criterion.reduction = criterion.reduction, "sum"
        try:
            return criterion(output, target, *args, **kwargs), {
                **vars(criterion),
                "weight": getattr(criterion, "weight", None),
            }
        finally:
            criterion.reduction = reduction


def _name_of(criterion: Any) -> str:
    if isinstance(criterion, partial):
        return _name_of(criterion.func)
    return criterion.__name__ if inspect.isroutine(criterion) else type(criterion).__name__


def _count(output: torch.Tensor, target: torch.Tensor, weight: torch.Tensor | None, ignore_index: int) -> torch.Tensor:
    """Return by what the mean over a batch divides, float64: the valid labels, or the weights of their classes."""
    if target.is_floating_point():  # probabilities of classes: each sample, or pixel, counts
        classes = output.shape[1] if output.dim() > 1 else output.shape[0]
        return torch.tensor(target.numel() / classes, dtype=torch.float64, device=output.device)
    valid = target[target != ignore_index]
    if weight is None:
        return torch.tensor(valid.numel(), dtype=torch.float64, device=output.device)
    return weight.to(torch.float64)[valid].sum()


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
