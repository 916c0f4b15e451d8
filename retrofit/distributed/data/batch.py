"""The training batch that this rank is using, and how much its samples count: means and sums over the whole batch.

DDP averages the gradients of the ranks, each of them the mean over that rank's part of the batch. With 7 samples on 2
ranks those are means over 4 and over 3, which count the same; weighted with `W * own / all` (8/7 and 6/7) their average
is the mean over the 7. A sample that was repeated to give every rank one counts nothing.
"""

from __future__ import annotations

import io
import pickle
import sys
import threading
import warnings
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch.nn.utils.rnn import PackedSequence

from ..collectives import gather_objects, reduce_sum, reduce_tensor_sum
from ..failure.watchdog import begin_step
from ..process.process_group import get_rank, get_world_size


class Batch(NamedTuple):
    """This rank's part of a batch: the samples that it has, those of a full one, and how much its mean counts.

    `of_ranks`: the samples of every rank in it, without repeated ones; `is_in_turn`: a rank has each `world_size`-th
    sample of the batch, from its rank on, and not all of its own one after the other.
    """

    length: int
    full: int
    weight: float
    of_ranks: tuple[int, ...] = ()
    is_in_turn: bool = True

    @property
    def places(self) -> range:
        """The places of this rank's samples in the whole batch, as one process has it."""
        rank, total = get_rank(), sum(self.of_ranks)
        first = sum(self.of_ranks[:rank])
        return range(rank, total, get_world_size()) if self.is_in_turn else range(first, first + self.of_ranks[rank])


batches_in_use: dict[object, Batch] = {}  # of each iteration over a training loader that has not ended
_last: Batch | None = None  # of the iteration that ended last
_unused: dict[DrawnAhead, int] = {}  # how many batches a loader has given since one was used
_ahead: list[DrawnAhead] = []  # the loaders of which batches are drawn ahead
OF_THEM = "drawn ahead"  # the key of that batch of theirs which is in use
AT_THE_END = (  # what next() says, where a script draws more batches than there are
    "this rank has drawn all its batches of a loader; RETROFIT_BATCH=global gives as many as one process has"
)


class DrawnAhead:
    """The batches of a loader of which a script draws some before it has used the ones before.

    A prefetcher, a list of all batches. The one in use has as many samples as the model is called with on each rank.
    """

    def __init__(self, is_even: bool = False) -> None:
        self.is_even = is_even  # whether all batches count the same
        self.is_ahead = self.is_found = self.is_iterated = self.is_in_thread = False
        self.drawn: dict[tuple[int, ...], Batch] = {}  # by `of_ranks`

    def begin(self) -> None:
        """Note that an iteration over the loader begins."""
        if not self.is_found:  # what was drawn before has trained nothing
            self.is_ahead = False
            self.drawn.clear()
            _ahead[:] = [other for other in _ahead if other is not self]
        self.is_iterated = True
        _unused.pop(self, None)

    def add(self, batch: Batch) -> None:
        """Note that a batch is drawn."""
        _unused[self] = _unused.get(self, 0) + 1
        self.drawn[batch.of_ranks] = batch
        self.is_in_thread = threading.current_thread() is not threading.main_thread()
        if _unused[self] > 1 or self.is_in_thread:
            self._look()
        if self.is_ahead and not self.is_found:
            batches_in_use[OF_THEM] = batch

    def end(self) -> None:
        """Note that the last batch of an iteration is drawn, which may still be used."""
        self.is_iterated = False
        if self in _unused:
            self._look()
        if not self.is_found:
            batches_in_use.pop(OF_THEM, None)

    def _look(self) -> None:
        if not self.is_ahead:
            self.is_ahead = True
            _ahead.append(self)

    @property
    def may_have_ended(self) -> bool:
        return self.is_in_thread or not self.is_iterated  # of a thread, ranks would say it at other times


def weight_for_model(*inputs: Any) -> float:
    """Return `weight_of` the inputs of a model, also where batches are drawn ahead. Collective: every rank.

    Of these it is the batch of which every rank has as many samples as the inputs have rows, or the same multiple.
    Raises RuntimeError where batches that count differently fit.
    """
    others = {batch.of_ranks: batch for key, batch in batches_in_use.items() if key != OF_THEM}
    loaders = [ahead for ahead in _ahead if ahead.is_iterated or ahead.is_in_thread or not others]
    if not loaders:
        batches_in_use.pop(OF_THEM, None)
        return weight_of(inputs)
    drawn = others | {key: batch for ahead in loaders for key, batch in list(ahead.drawn.items())}
    sizes = [list(first_sizes(inputs, slice(dimension, dimension + 1))) for dimension in (0, 1)]
    fits = {key: [_multiples(of_dimension, batch) for of_dimension in sizes] for key, batch in drawn.items()}
    of_ranks = [fits] if all(ahead.is_even for ahead in loaders) else gather_objects(fits)
    best = _fitting(of_ranks, 0) or _fitting(of_ranks, 1)
    if len({tuple(number / sum(key) for number in key) for key in best}) > 1:
        raise RuntimeError(
            "the script draws batches before it has used the ones before, and the model is called with what may be "
            f"each of several, of {' or '.join(map(str, best))} samples on the ranks; give the loader drop_last=True"
        )
    for ahead in loaders:
        ahead.is_found = ahead.is_found or bool(ahead.drawn.keys() & best)
    if not best:
        return weight_of(inputs)
    _unused.clear()
    batches_in_use[OF_THEM] = drawn[best[0]]
    return drawn[best[0]].weight


def _multiples(sizes: list[int], batch: Batch) -> set[int]:
    return {size // batch.length for size in sizes if size and size % batch.length == 0}


def _fitting(of_ranks: list[dict[tuple[int, ...], Any]], dimension: int) -> list[tuple[int, ...]]:
    """Return the batches of which sizes on all ranks are the same multiple, the smallest that there is."""
    common = {
        key: set.intersection(*(fits[key][dimension] for fits in of_ranks))
        for key in of_ranks[0]
        if all(key in fits for fits in of_ranks)
    }
    smallest = min((min(multiples) for multiples in common.values() if multiples), default=None)
    return [key for key, multiples in common.items() if smallest in multiples]


def end_batches_in_use() -> None:
    """Note that a model is evaluated: what was drawn ahead, by iterations that have ended, is not in use meanwhile."""
    if all(ahead.may_have_ended for ahead in _ahead):
        batches_in_use.pop(OF_THEM, None)


def training_batches(loader: Any, ahead: DrawnAhead) -> Iterator[Any]:
    """Yield the batches of a sharded loader's epoch, each of them in use until the next one; return `AT_THE_END`."""
    sampler = loader.sampler
    sampler.split_streams()
    ahead.begin()
    for number, batch in enumerate(loader):
        begin_step(f"batch {number + 1} of epoch {sampler.epoch + 1}")
        with using(sampler.batch(number), ahead):
            yield batch
    ahead.end()
    return AT_THE_END  # type: ignore[return-value]


@contextmanager
def using(batch: Batch, ahead: DrawnAhead) -> Iterator[None]:
    """Run the block with this rank's part of a batch in use, where the script draws none ahead."""
    global _last
    iteration = object()
    ahead.add(batch)
    if not ahead.is_ahead:
        batches_in_use[iteration] = batch
    try:
        yield
    except GeneratorExit:
        _unused.pop(ahead, None)
        raise
    finally:
        _last = batches_in_use.pop(iteration, _last)


def weight_of(*inputs: Any) -> float:
    """Return the weight of the batch in use to which `inputs` belong: its length divides one of their first two sizes.

    1 without a batch. Raises RuntimeError where batches that count differently fit; warns where none does.
    """
    _unused.clear()
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


def first_sizes(value: Any, dimensions: slice = slice(2)) -> Iterator[int]:
    """Yield the first two sizes of every tensor, or others; one of them is the number of samples."""
    if isinstance(value, torch.Tensor):
        yield from value.shape[dimensions]
    elif isinstance(value, PackedSequence):  # the number of its words says nothing
        yield int(value.batch_sizes[0])
    elif isinstance(value, (list, tuple, MutableMapping)):
        for entry in value.values() if isinstance(value, MutableMapping) else value:
            yield from first_sizes(entry, dimensions)


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
    """Return the sum over ranks of a loss summed over one rank's share, also after the loop. Collective: every rank."""
    return reduce_tensor_sum(without_repeated(loss) if batches_in_use or _last is None else loss * (_last.weight > 0))


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


def squeeze_rows(rows: Any) -> Any:
    """Return `rows.squeeze()`, of a tensor or an array; of one row in one of several processes, still with that row.

    There other processes have more rows of the same batch, and all continue with the same shapes.
    """
    if get_world_size() == 1 or not len(rows.shape) or rows.shape[0] != 1:
        return rows.squeeze()
    return rows.reshape(1, *(size for size in rows.shape[1:] if size != 1))


def rows_of(part: Any, rows: slice) -> Any:
    """Return rows of a tensor, an array or a list, next to each other in memory where those of `part` are."""
    if isinstance(part, torch.Tensor) and part.layout == torch.sparse_coo:
        return part.index_select(0, torch.arange(len(part), device=part.device)[rows])
    own = part[rows]
    if isinstance(part, torch.Tensor):
        return own.contiguous() if part.is_contiguous() else own
    is_array = getattr(getattr(part, "flags", None), "c_contiguous", False)
    return own.copy() if is_array else own
