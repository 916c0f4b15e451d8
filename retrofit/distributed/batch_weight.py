"""How much each rank's share of a training batch counts, where the last batch does not divide by the ranks.

DDP averages the gradients of the ranks, each of them the mean over that rank's share. With 7 samples on 2 ranks those
are means over 4 and over 3, which count alike; weighted with `W * own / all` (8/7 and 6/7) their average is the mean
over the 7. A sample that was repeated to give every rank one counts nothing.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, MutableMapping
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence
from torch.utils.data import DataLoader

from .data import ShardedSampler
from .process_group import get_option, get_world_size
from .rank_state import begin_step
from .reduce import gather_objects, reduce_mean, reduce_sum, reduce_tensor_sum
from .sharing import is_sharing

_AT_FIRST = "_retrofit_at_first"


class _Use:
    """One iteration over a loader."""


class Batch(NamedTuple):
    """This rank's share of a batch: the samples that it has, those of a full one, and how much it counts."""

    length: int
    full: int
    weight: float


_running: WeakKeyDictionary[_Use, Batch] = WeakKeyDictionary()
_last: Batch | None = None  # of the iteration that ended last


class WeighedLoader(DataLoader):
    """A DataLoader that says, while its batches are used, how much this rank's share of each counts."""

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        global _last
        sampler, use = self.sampler, _Use()
        assert isinstance(sampler, ShardedSampler)
        self.__dict__.pop(_AT_FIRST, lambda: None)()
        try:
            for number, batch in enumerate(super().__iter__()):
                begin_step(f"batch {number + 1} of epoch {sampler.epoch + 1}")
                length, weight = sampler.batch_length(number), sampler.batch_weight(number)
                _running[use] = Batch(length, sampler.batch_size, weight)
                yield batch
        finally:
            _last = _running.pop(use, _last)


def weigh_batches(loader: DataLoader, at_first: Callable[[], None]) -> DataLoader:
    """Return `loader`, whose sampler is a `ShardedSampler`, as one of its own class that weighs its batches too.

    `at_first` is called when its first iteration begins.
    """
    kind = type(loader)
    loader.__dict__[_AT_FIRST] = at_first
    loader.__class__ = type(kind.__name__, (WeighedLoader, kind), {})
    return loader


def weigh_gradients(model: nn.Module) -> nn.Module:
    """Return `model`, whose parameters get gradients with the weight of the batch that is being trained on.

    What flows on through its inputs, into another model, is as it was: that one weighs for itself.
    """
    model.register_forward_pre_hook(_restore_behind_inputs, with_kwargs=True)
    model.register_forward_hook(_weigh_output, with_kwargs=True)
    return model


def reduce_loss(loss: Any) -> Any:
    """Return the mean over the batch of all ranks of a loss, or of another mean, over one rank's share.

    `loss`: a tensor, which comes back without gradient, a number or an array. Collective: every rank.
    """
    return loss if get_world_size() == 1 else _mean(loss, weight_of())


def reduce_last_loss(loss: Any) -> Any:
    """Return the same for the loss of the last batch, which is read after the loop over the loader has ended.

    `loss`: as in reduce_loss. Collective: every rank.
    """
    if get_world_size() == 1:
        return loss
    return _mean(loss, weight_of() if _running or _last is None else _last.weight)


def _mean(loss: Any, weight: float) -> Any:
    return _of_kind(loss, lambda value: reduce_mean(value if weight == 1.0 else value * weight))


def reduce_total(value: Any) -> Any:
    """Return the sum over ranks of what was counted or added up over this rank's share of a training batch.

    `value`: a number, a tensor or an array. It is `value` itself where no share of a batch is in use, as in an
    evaluation that every rank runs whole. Collective: every rank.
    """
    if get_world_size() == 1 or not _running:
        return value
    own = value * 0 if weight_of() == 0 else value  # a sample that was repeated to give every rank one
    return _of_kind(own, reduce_tensor_sum)


def gather_batch(values: Any) -> Any:
    """Return the entries of all ranks' shares of a training batch, in the order in which one process has them.

    `values`: a list, a tensor or an array with an entry per sample. It is `values` itself where no share of a batch
    is in use. Collective: every rank.
    """
    if get_world_size() == 1 or not _running:
        return values
    own = values[:0] if weight_of() == 0 else values
    is_tensor = isinstance(own, torch.Tensor)
    shares = gather_objects(own.detach().cpu() if is_tensor else own)
    rows = [share[number : number + 1] for number in range(max(map(len, shares))) for share in shares]
    rows = [row for row in rows if len(row)]
    if is_tensor:
        return torch.cat(rows).to(values.device) if rows else own
    if isinstance(values, list):
        return [entry for row in rows for entry in row]
    return type_of_array(values).concatenate(rows) if rows else own


def type_of_array(array: Any) -> Any:
    """Return the module of an array's class, which is numpy: nothing here needs it otherwise."""
    import sys

    return sys.modules[type(array).__module__.partition(".")[0]]


def _of_kind(value: Any, reduce: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Return what `reduce` makes of a tensor, of a number or of an array, as one of its own kind."""
    if isinstance(value, torch.Tensor):
        return reduce(value.int() if value.dtype == torch.bool else value)
    tensor = torch.as_tensor(value, dtype=None if hasattr(value, "dtype") or isinstance(value, int) else torch.float64)
    reduced = reduce(tensor)
    return reduced.numpy() if getattr(value, "shape", ()) else reduced.item()


def reduce_summed_loss(loss: torch.Tensor) -> torch.Tensor:
    """Return the sum over the batch of all ranks of a loss that is the sum over one rank's share.

    Collective: every rank.
    """
    return reduce_tensor_sum(loss * 0 if weight_of() == 0 else loss)  # 0: a sample that was repeated to give it one


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


def length_in_use(full: int) -> int:
    """Return how many samples this rank has of the batch in use, of a loader whose batches have `full`, else `full`."""
    lengths = {batch.length for batch in _running.values() if batch.full == full}
    return lengths.pop() if len(lengths) == 1 else full


def weight_of(*inputs: Any) -> float:
    """Return the weight of the batch in use; 1 where there is none, several differ, or the inputs are no such batch.

    Inputs without a tensor, a batch in an object of the script's own, are taken for it.
    """
    batches = {(batch.length, batch.weight) for batch in _running.values()}
    if len(batches) != 1:
        return 1.0
    ((length, weight),) = batches
    sizes = [size for tensor in _tensors(inputs) for size in tensor.shape[:2]]
    return weight if not sizes or any(size and size % length == 0 for size in sizes) else 1.0


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


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, PackedSequence):
        yield value.data.new_empty(int(value.batch_sizes[0]), 0)  # its words say nothing about the number of samples
    elif isinstance(value, MutableMapping):
        for entry in value.values():
            yield from _tensors(entry)
    elif isinstance(value, (list, tuple)):
        for entry in value:
            yield from _tensors(entry)
