"""The training batch that this rank is using, and how much its samples count: means and sums over the whole batch.

DDP averages the gradients of the ranks, each of them the mean over that rank's part of the batch. With 7 samples on 2
ranks those are means over 4 and over 3, which count the same; weighted with `W * own / all` (8/7 and 6/7) their average
is the mean over the 7. A sample that was repeated to give every rank one counts nothing.

The loader of `distribute_loader` tells `open_batches` which batch it has yielded; the model, the losses and the
functions here ask it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, MutableMapping
from typing import Any, NamedTuple

import torch
from torch.nn.utils.rnn import PackedSequence

from .collectives import gather_objects, reduce_mean, reduce_tensor_sum
from .process_group import get_world_size


class Batch(NamedTuple):
    """This rank's part of a batch: the samples that it has, those of a full one, and how much its mean counts."""

    length: int
    full: int
    weight: float


class OpenBatches:
    """The batches in use on this rank: one for each iteration over a training loader that has not ended."""

    def __init__(self) -> None:
        self._open: dict[object, Batch] = {}
        self._ended: Batch | None = None

    def begin(self, iteration: object, batch: Batch) -> None:
        """Say that an iteration over a loader has yielded `batch`, which takes the place of its last one."""
        self._open[iteration] = batch

    def end(self, iteration: object) -> None:
        """Say that an iteration over a loader has ended, at its last batch or before."""
        self._ended = self._open.pop(iteration, self._ended)

    @property
    def is_any(self) -> bool:
        """Whether a batch is in use: not so in an evaluation that every rank runs in full."""
        return bool(self._open)

    def length(self, full: int) -> int:
        """Return how many samples this rank has of the batch in use whose loader's batches have `full`, else `full`."""
        lengths = {batch.length for batch in self._open.values() if batch.full == full}
        return lengths.pop() if len(lengths) == 1 else full

    def last_weight(self) -> float:
        """Return the weight of the batch in use, after a loop that of its last batch."""
        return self._ended.weight if not self._open and self._ended is not None else self.weight()

    def weight(self, *inputs: Any) -> float:
        """Return the weight of the batch in use, to which `inputs` belong; 1 where there is none.

        Tensors belong to a batch whose length divides one of their first two sizes; inputs without a tensor, a batch
        in an object of the script's own, belong to any. Warns where a weight is not 1 and no batch fits. Raises
        RuntimeError where batches that count differently fit: two loaders in use at once, one with an uneven batch.
        """
        if all(batch.weight == 1.0 for batch in self._open.values()):
            return 1.0
        sizes = [size for tensor in _tensors(inputs) for size in tensor.shape[:2]]
        fitting = {
            batch
            for batch in self._open.values()
            if not sizes or any(size and size % batch.length == 0 for size in sizes)
        }
        weights = {batch.weight for batch in fitting}
        if len(weights) > 1:
            lengths = " and ".join(f"{batch.length} of {batch.full}" for batch in sorted(fitting))
            raise RuntimeError(
                f"two training loaders are in use at once, and their batches count differently ({lengths} samples on "
                "this rank): which of them a loss belongs to cannot be told; give both loaders drop_last=True"
            )
        if not weights:
            self._warn(sizes)
        return weights.pop() if weights else 1.0

    def _warn(self, sizes: list[int]) -> None:
        lengths = ", ".join(str(batch.length) for batch in self._open.values())
        warnings.warn(
            f"the model was called with sizes {sizes} in an uneven last batch of {lengths} samples on this rank; its "
            "gradients count the same on every rank; drop_last=True makes every batch even",
            stacklevel=3,
        )


open_batches = OpenBatches()


def weight_of(*inputs: Any) -> float:
    """Return how much the samples of this rank count in the batch in use, see `OpenBatches.weight`."""
    return open_batches.weight(*inputs)


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
    return _mean(loss, open_batches.last_weight())


def _mean(loss: Any, weight: float) -> Any:
    return _of_kind(loss, lambda value: reduce_mean(value if weight == 1.0 else value * weight))


def reduce_total(value: Any) -> Any:
    """Return the sum over ranks of what was counted or added up over this rank's share of a training batch.

    `value`: a number, a tensor or an array. It is `value` itself where no share of a batch is in use, as in an
    evaluation that every rank runs whole. Collective: every rank.
    """
    if get_world_size() == 1 or not open_batches.is_any:
        return value
    own = value * 0 if weight_of() == 0 else value  # a sample that was repeated to give every rank one
    return _of_kind(own, reduce_tensor_sum)


def gather_batch(values: Any) -> Any:
    """Return the entries of all ranks' shares of a training batch, in the order in which one process has them.

    `values`: a list, a tensor or an array with an entry per sample. It is `values` itself where no share of a batch
    is in use. Collective: every rank.
    """
    if get_world_size() == 1 or not open_batches.is_any:
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
