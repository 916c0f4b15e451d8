"""A loss that is the mean over what counts in the batch of all ranks: no ignored labels, classes by weight, words.

torch's cross entropy divides by the number of valid labels, or by the sum of their classes' weights. Ranks differ in
that number, so the average of their means is another loss; with the sum over ranks as divisor it is the same one.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from .batch_weight import weight_of
from .process_group import get_world_size, is_distributed
from .reduce import reduce_tensor_sum

OF_CLASSES = {"CrossEntropyLoss", "NLLLoss", "cross_entropy", "nll_loss"}  # others divide by the number of elements


def distribute_criterion(criterion: Callable[..., torch.Tensor]) -> Any:
    """Return a loss over the batch of all ranks; outside a group, `criterion` itself.

    `criterion`: a loss of torch with reduction="mean" that compares an output and a target by class (nn.NLLLoss) or
    number by number (nn.MSELoss), or its function. DDP averages the gradients of what it returns to those of the loss
    over all ranks; the mean over ranks of the values is that loss. Of an output without gradients it is the loss of
    this rank's batch alone. Collective: every rank, in training.
    """
    return WholeBatchLoss(criterion) if is_distributed() else criterion


class WholeBatchLoss(nn.Module):
    """See `distribute_criterion`. Attributes are those of the criterion."""

    def __init__(self, criterion: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.criterion = criterion

    def forward(self, output: torch.Tensor, target: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        if not torch.is_grad_enabled() or not output.requires_grad:  # an evaluation: ranks may have other numbers of it
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
        if inspect.isroutine(criterion):
            bound = inspect.signature(criterion).bind(output, target, *args, **kwargs).arguments
            options = {name: value for name, value in bound.items() if name not in ("input", "target")}
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
