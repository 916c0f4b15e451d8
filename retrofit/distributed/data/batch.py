"""The training batch that this rank is using, and how much its samples count: means and sums over the whole batch.

DDP averages the gradients of the ranks, each of them the mean over that rank's part of the batch. With 7 samples on 2
ranks those are means over 4 and over 3, which count the same; weighted with `W * own / all` (8/7 and 6/7) their average
is the mean over the 7. A sample that was repeated to give every rank one counts nothing.
"""

from __future__ import annotations

import io
import pickle
import sys
import warnings
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch.nn.utils.rnn import PackedSequence

from ..collectives import gather_objects, reduce_sum, reduce_tensor_sum
from ..failure.watchdog import begin_step
from ..process.process_group import get_world_size


class Batch(NamedTuple):
    """This rank's part of a batch: the samples that it has, those of a full one, and how much its mean counts."""

    length: int
    full: int
    weight: float


batches_in_use: dict[object, Batch] = {}  # of each iteration over a training loader that has not ended
_last: Batch | None = None  # of the iteration that ended last


def training_batches(loader: Any) -> Iterator[Any]:
    """Yield the batches of a sharded loader's epoch, each of them in use until the next one."""
    sampler = loader.sampler
    sampler.split_streams()
    for number, batch in enumerate(loader):
        begin_step(f"batch {number + 1} of epoch {sampler.epoch + 1}")
        with using(sampler.batch(number)):
            yield batch


@contextmanager
def using(batch: Batch) -> Iterator[None]:
    """Run the block with this rank's part of a batch in use."""
    global _last
    iteration = object()
    batches_in_use[iteration] = batch
    try:
        yield
    finally:
        _last = batches_in_use.pop(iteration, _last)


def weight_of(*inputs: Any) -> float:
    """Return the weight of the batch in use to which `inputs` belong: its length divides one of their first two sizes.

    1 without a batch. Raises RuntimeError where batches that count differently fit; warns where none does.
    """
    batches = sorted(set(batches_in_use.values()))
    if all(batch.weight == 1.0 for batch in batches):
        return 1.0
    sizes = list(first_sizes(inputs))
    fits = [not sizes or any(size and size % batch.length == 0 for size in sizes) for batch in batches]
    weights = {batch.weight for batch, is_fit in zip(batches, fits) if is_fit}
    lengths = " and ".join(f"{batch.length} of {batch.full}" for batch in batches)
    if len(weights) > 1:
        raise RuntimeError(
            f"two training loaders are in use at once, and their batches count differently ({lengths} samples on "
            "this rank): which of them a loss belongs to cannot be told; give both loaders drop_last=True"
        )
    if weights:
        return weights.pop()
    warnings.warn(
        f"the model was called with sizes {sizes} in an uneven last batch ({lengths} samples on this rank); its "
        "gradients count the same on every rank; drop_last=True makes every batch even",
        stacklevel=2,
    )
    return 1.0


def first_sizes(value: Any) -> Iterator[int]:
    """Yield the first two sizes of every tensor; one of them is the number of samples."""
    if isinstance(value, torch.Tensor):
        yield from value.shape[:2]
    elif isinstance(value, PackedSequence):  # the number of its words says nothing
        yield int(value.batch_sizes[0])
    elif isinstance(value, (list, tuple, MutableMapping)):
        for entry in value.values() if isinstance(value, MutableMapping) else value:
            yield from first_sizes(entry)


def without_repeated(value: Any) -> Any:
    """Return a sum or a count of this rank's share, 0 where it is of a sample repeated to give every rank one."""
    return value * 0 if weight_of() == 0 else value


def total_of_ranks(value: Any) -> Any:
    """Return the sum over ranks of a tensor, a number or an array, which must be of one kind on every rank."""
    if isinstance(value, torch.Tensor):
        return reduce_tensor_sum(value.int() if value.dtype == torch.bool else value)
    if type(value) not in (int, float):
        return sum(gather_objects(value))
    total = reduce_sum([value])[0]
    return int(total) if type(value) is int and total.is_integer() else total


class _ValuePickler(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor) and (value.requires_grad or value.device.type != "cpu"):
            return torch.Tensor.to, (value.detach().cpu(), value.device.type)
        return NotImplemented


def gather_values(value: Any) -> list[Any]:
    """Return the values of all ranks. Tensors in them come without gradients, those on a GPU to that of this rank."""
    _ValuePickler(file := io.BytesIO()).dump(value)
    return [pickle.loads(of_rank) for of_rank in gather_objects(file.getvalue())]


def in_turn(lists: Any) -> list[Any]:
    """Return the entries of all ranks' lists in the order of one process: the first ones, then the second ones."""
    return [entries[row] for row in range(max(map(len, lists))) for entries in lists if row < len(entries)]


def reduce_loss(loss: Any) -> Any:
    """Return the mean over the batch of all ranks of a loss, or of another mean, over one rank's share.

    `loss`: a tensor, which comes back without gradient, a number or an array. Collective: every rank.
    """
    return _weighted_mean(loss, weight_of())


def reduce_last_loss(loss: Any) -> Any:
    """Return `reduce_loss` of the last batch, after the loop over the loader. Collective: every rank."""
    return _weighted_mean(loss, weight_of() if batches_in_use or _last is None else _last.weight)


def _weighted_mean(loss: Any, weight: float) -> Any:
    world_size = get_world_size()
    return loss if world_size == 1 else total_of_ranks(loss * weight) / world_size


def reduce_summed_loss(loss: torch.Tensor) -> torch.Tensor:
    """Return the sum over all ranks of a loss that is the sum over one rank's share. Collective: every rank."""
    return reduce_tensor_sum(without_repeated(loss))


def reduce_total(value: Any) -> Any:
    """Return the sum over ranks of what was counted or added up over this rank's share of a training batch.

    `value`: a number, a tensor or an array; returned as it is where no share of a batch is in use, as in an evaluation
    that every rank runs whole. Collective: every rank.
    """
    return total_of_ranks(without_repeated(value)) if get_world_size() > 1 and batches_in_use else value


def gather_batch(values: Any) -> Any:
    """Return the entries of all ranks' shares of a training batch, in the order in which one process has them.

    `values`: a list, a tensor or an array with an entry per sample; returned as it is where no share of a batch is in
    use. Collective: every rank.
    """
    if get_world_size() == 1 or not batches_in_use:
        return values
    shares = gather_values(values[:0] if weight_of() == 0 else values)
    if isinstance(values, list):
        return in_turn(shares)
    rows = in_turn([[share[row : row + 1] for row in range(len(share))] for share in shares])
    join = torch.cat if isinstance(values, torch.Tensor) else sys.modules["numpy"].concatenate
    return join(rows or [values[:0]])
