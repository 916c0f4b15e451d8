"""Losses over the batch of all ranks: what to call backward on, what to divide by, criteria of libraries.

DDP averages the gradients of the ranks, so the mean over a rank's part of the batch is right where the parts are even.
A sum needs a factor, a mean over valid elements the number of all ranks, and a loss that couples samples their sums.
Without gradients, and in a loop over `share_batches`, all of it is the identity: an evaluation is a rank's own.
"""

from __future__ import annotations

import copy
import inspect
import os
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from .collectives import reduce_tensor_sum
from .data.batch import (
    Batch,
    batches_in_use,
    reduce_last_loss,
    reduce_loss,
    reduce_summed_loss,
    reduce_total,
    total_of_ranks,
    weight_of,
    without_repeated,
)
from .data.loaders import micro_batch
from .ddp.forward_guard import is_running_forward
from .evaluation import is_sharing
from .process.environment import read_environment
from .process.options import get_option
from .process.process_group import get_world_size, is_distributed

__all__ = [
    "batch_count",
    "batch_mean",
    "batch_rows",
    "batch_sum",
    "chosen_mean",
    "distribute_criterion",
    "global_batch",
    "part_of_mean",
    "rank_share",
    "reduce_last_loss",
    "reduce_loss",
    "reduce_summed_loss",
    "sum_loss",
    "whole_batch_loss",
    "whole_batch_size",
]


def _is_of_all_ranks() -> bool:
    return get_world_size() > 1 and torch.is_grad_enabled() and not is_sharing()


def sum_loss(loss: torch.Tensor) -> torch.Tensor:
    """Return what to call backward on for a loss, or a term of one, that is a sum over this rank's samples."""
    return loss * (get_world_size() / (weight_of() or 1.0)) if _is_of_all_ranks() else loss


def batch_count(count: Any) -> Any:
    """Return the sum over ranks of a count of this rank's batch: its samples, or those of its elements that matter.

    A mean is divided by it, a sum by `rank_share` of it. Collective: every rank, in training.
    """
    return total_of_ranks(without_repeated(count)) if _is_of_all_ranks() else count


def global_batch(batch_size: Any) -> Any:
    """Return how many samples all ranks have in a batch of `batch_size` per rank; `--batch global`: the same."""
    return batch_size * get_world_size() if _is_of_all_ranks() and get_option("batch") != "global" else batch_size


def part_of_mean(loss: torch.Tensor) -> torch.Tensor:
    """Return a mean over this rank's samples, of which the gradients with respect to them are those of one process.

    The loss itself outside a training batch, and where a rank has a batch of its own: those of its batch.
    """
    is_part = _is_of_all_ranks() and batches_in_use and get_option("batch") == "global"
    return loss * ((weight_of() or 1.0) / get_world_size()) if is_part else loss


def whole_batch_size(batch_size: int) -> int:
    """Return how many samples the batch in use has over all ranks, for a loss that is shaped by the batch size.

    `batch_size`: the setting, of one process; returned as it is outside a training.
    """
    if not _is_of_all_ranks() or not batches_in_use:
        return batch_size
    totals = {sum(batch.of_ranks) for batch in batches_in_use.values() if batch.full == micro_batch(batch_size)}
    return totals.pop() if len(totals) == 1 else global_batch(batch_size)


def rank_share(count: Any) -> Any:
    """Return by what a rank divides its sum to get the gradients of a mean over all ranks; `count`: of all of them."""
    if not _is_of_all_ranks():
        return count
    if isinstance(count, torch.Tensor) and not count.dim():
        count = count.double()  # a third is not exact; of a single number the type of the loss stays
    return count * (weight_of() or 1.0) / get_world_size()


class _SumOverRanks(torch.autograd.Function):
    """The sum over ranks, for losses of all ranks that DDP averages. `weight`: that of this rank's batch."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, weight: float) -> torch.Tensor:
        ctx.weight = 1.0 if is_running_forward() else weight  # gradients come into a model with their weight
        return reduce_tensor_sum(tensor * 0 if weight == 0 else tensor)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return reduce_tensor_sum(gradients[0].contiguous() * ctx.weight) / (ctx.weight or 1.0), None


def batch_sum(tensor: torch.Tensor, learns: bool = True) -> torch.Tensor:
    """Return the sum over ranks of a sum over this rank's samples, with gradients: a numerator, a denominator.

    `learns=False`: for what is computed under torch.no_grad() in training, as the statistics of a codebook are.
    Collective: every rank, in training, forward and backward.
    """
    if not learns:
        return tensor if is_sharing() else reduce_total(tensor)
    return _SumOverRanks.apply(tensor, weight_of()) if _is_of_all_ranks() else tensor


def batch_mean(tensor: torch.Tensor, learns: bool = True) -> torch.Tensor:
    """Return the mean over all samples of a mean over this rank's, as `batch_sum`. Collective: every rank."""
    is_of_all = _is_of_all_ranks() if learns else get_world_size() > 1 and bool(batches_in_use) and not is_sharing()
    return batch_sum(tensor * (weight_of() / get_world_size()), learns) if is_of_all else tensor


def chosen_mean(values: torch.Tensor, *axes: Any, **options: Any) -> torch.Tensor:
    """Return `values.mean(*axes, **options)` of what a mask leaves of this rank's batch, so that DDP averages right.

    A rank counts by its share of all elements: the mean over ranks is that of the whole batch, and so are the
    gradients. One without elements adds nothing. Collective: every rank, in training.
    """
    if not _is_of_all_ranks():
        return values.mean(*axes, **options)
    count = without_repeated(values.numel())
    share = rank_share(batch_count(count))
    if not count:
        return without_repeated(values.sum(*axes, **options)) / share
    return values.mean(*axes, **options) * (count / share)


def batch_rows(rows: torch.Tensor, views: bool = False) -> torch.Tensor:
    """Return the rows of the whole batch in the order of one process, with gradients; `rows`: those of this rank.

    For a loss that compares the samples of a batch: what is computed of it is the same on all ranks, for the memory of
    the whole batch's rows. Each sample has as many rows, which are next to each other; with `views` the rows of several
    views follow one another, as torch.cat([a, b]) has them. Raises RuntimeError where that cannot be. Collective: every
    rank, in training, forward and backward.
    """
    if not _is_of_all_ranks() or not batches_in_use:
        return rows
    batch = _batch_of_rows(rows, views)
    number = len(rows) // batch.length  # of rows per sample
    shape = (number, batch.length) if views else (1, batch.length, number)
    parts = rows.reshape(*shape, *rows.shape[1:])[:, : len(batch.places)]
    parts = parts.long() if rows.dtype == torch.bool else parts
    whole = parts.new_zeros(parts.shape[0], sum(batch.of_ranks), *parts.shape[2:])  # all but this rank's are 0
    whole = whole.index_copy(1, torch.tensor(batch.places, dtype=torch.int64, device=rows.device), parts)
    return _SumOverRanks.apply(whole, batch.weight).reshape(-1, *rows.shape[1:]).to(rows.dtype)


def _batch_of_rows(rows: torch.Tensor, views: bool) -> Batch:
    """Return the batch in use to which rows belong: it has as many samples, or divides them."""
    if rows.dim() == 0:
        text = "a number without rows is to be gathered from all ranks; leave rd.loss.batch_rows out around it where"
        raise RuntimeError(f"{text} all ranks have the same, and gather the rows that it is computed from where not")
    batches = set(batches_in_use.values())
    fitting = {batch for batch in batches if len(rows) == batch.length and not views}
    fitting = fitting or {batch for batch in batches if len(rows) % batch.length == 0}
    if len(fitting) == 1:
        return fitting.pop()
    lengths = " and ".join(sorted(f"{batch.length} samples" for batch in batches))
    raise RuntimeError(
        f"{len(rows)} rows are to be gathered from all ranks, and the batches in use have {lengths} on this rank: "
        "which rows belong to which sample cannot be told; every sample needs as many rows"
    )


class _CriterionOfRanks(nn.Module):
    """A criterion over the batch of all ranks. Attributes are those of `criterion`, which stays as it is."""

    def __init__(self, criterion: Callable[..., Any]) -> None:
        super().__init__()
        self.criterion = criterion

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name == "criterion":
                raise
            return getattr(self.criterion, name)


def whole_batch_loss(criterion: Callable[..., Any]) -> Any:
    """Return `criterion` computed on every rank over the samples of all of them, for one that cannot be taken apart.

    Every argument with an entry per sample is gathered, with gradients, which takes the memory of the whole batch's
    outputs; `batch_rows` is for single ones. Collective: every rank, in training.
    """
    return WholeBatch(criterion)


class WholeBatch(_CriterionOfRanks):
    """See `whole_batch_loss`."""

    def forward(self, *inputs: Any, **options: Any) -> Any:
        tensors = [value for value in (*inputs, *options.values()) if isinstance(value, torch.Tensor) and value.dim()]
        if not _is_of_all_ranks() or not any(tensor.requires_grad for tensor in tensors):
            return self.criterion(*inputs, **options)
        length = len(tensors[0])

        def whole(value: Any) -> Any:
            has_rows = isinstance(value, torch.Tensor) and value.dim() > 0 and len(value) == length
            return batch_rows(value) if has_rows else value

        return self.criterion(*map(whole, inputs), **{name: whole(value) for name, value in options.items()})


OF_CLASSES = {"CrossEntropyLoss", "NLLLoss", "cross_entropy", "nll_loss"}  # others divide by the number of elements
OF_ELEMENTS = {
    "MSELoss", "L1Loss", "SmoothL1Loss", "HuberLoss", "BCELoss", "BCEWithLogitsLoss", "mse_loss", "l1_loss",
    "smooth_l1_loss", "huber_loss", "binary_cross_entropy", "binary_cross_entropy_with_logits",
}  # fmt: skip


def distribute_criterion(criterion: Callable[..., torch.Tensor]) -> Any:
    """Return a loss over the batch of all ranks; outside a group, `criterion` itself.

    `criterion`: a loss of torch with reduction="mean" that compares an output and a target by class (nn.NLLLoss) or
    number by number (nn.MSELoss), its function or a partial of that; another one is returned as it is. The mean over
    ranks of the values is that loss, and so are the gradients that DDP averages. It may be built before
    setup_distributed. Collective: every rank, in training.
    """
    is_one_of_several = is_distributed() or read_environment(os.environ).world_size > 1
    return WholeBatchLoss(criterion) if is_one_of_several and _can_count(criterion) else criterion


def _can_count(loss: Any) -> bool:
    if isinstance(loss, partial):
        return _can_count(loss.func) and not loss.args and _takes_mean(loss.keywords)
    return _name_of(loss) in OF_CLASSES | OF_ELEMENTS and _takes_mean(vars(getattr(loss, "__self__", loss)))


def _takes_mean(options: dict[str, Any]) -> bool:
    return options.get("reduction", "mean") == "mean" and False not in map(options.get, ("size_average", "reduce"))


def _name_of(criterion: Any) -> str:
    run = criterion if inspect.isroutine(criterion) else getattr(type(criterion), "forward", _name_of)  # of a base
    is_of_torch = str(run.__module__).startswith("torch.nn.") or inspect.isfunction(criterion)
    return str(run.__qualname__).removesuffix(".forward").rpartition(".")[2] if is_of_torch else ""


class WholeBatchLoss(_CriterionOfRanks):
    """See `distribute_criterion`: the loss summed over this rank's batch, divided by what counts on all ranks."""

    def forward(self, output: torch.Tensor, target: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        if not _is_of_all_ranks() or not output.requires_grad or not _takes_mean(kwargs):
            return self.criterion(output, target, *args, **kwargs)
        criterion: Any = self.criterion
        if isinstance(criterion, partial):
            criterion, kwargs = criterion.func, {**criterion.keywords, **kwargs}
        summed: Any = copy.copy(getattr(criterion, "__self__", criterion))  # of super().forward, the object
        if isinstance(summed, nn.Module):
            summed.reduction = "sum"  # type: ignore[assignment]
            options = {key: getattr(summed, key) for key in ("weight", "ignore_index") if hasattr(summed, key)}
            total = getattr(criterion, "__func__", type(summed).__call__)(summed, output, target, *args, **kwargs)
        else:
            names = list(inspect.signature(getattr(nn.functional, criterion.__name__)).parameters)[2:]
            options = {**dict(zip(names, args)), **kwargs, "reduction": "sum"}
            total = criterion(output, target, **{k: options[k] for k in options if k not in ("size_average", "reduce")})
        if _name_of(criterion) in OF_CLASSES:
            count = _classes_that_count(output, target, options.get("weight"), options.get("ignore_index", -100))
        else:
            count = torch.broadcast_shapes(output.shape, target.shape).numel()
        count = torch.as_tensor(count, dtype=torch.float64).to(output.device)
        return sum_loss(without_repeated(total)) / batch_count(count)


def _classes_that_count(output: torch.Tensor, target: torch.Tensor, weight: Any, ignore_index: int) -> Any:
    """Return by what the mean over a batch divides: the number of valid labels, or the weights of their classes."""
    if target.is_floating_point():  # probabilities of classes: each sample, or pixel, counts
        return target.numel() / output.shape[min(1, output.dim() - 1)]
    valid = target[target != ignore_index]
    return valid.numel() if weight is None else weight.to(torch.float64)[valid].sum()
