"""A loss that is the mean over what counts in the batch of all ranks: no ignored labels, classes by weight, words.

torch's cross entropy divides by the number of valid labels, or by the sum of their classes' weights. Ranks differ in
that number, so the average of their means is another loss; with the sum over ranks as divisor it is the same one.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from .batch_weight import weight_of
from .environment import read_environment
from .process_group import get_world_size, is_distributed
from .reduce import reduce_tensor_sum
from .sharing import is_sharing

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
