"""Split an evaluation over the ranks by whole batches, and reduce its results.

Each rank evaluates some of the very batches that one process would evaluate, so sums over batches and lists of their
results are those of one process. Outside a group everything is the identity.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice, zip_longest
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch.utils.data import DataLoader, IterableDataset, Sampler

from .collectives import gather_objects
from .process_group import get_device, get_rank, get_world_size, is_distributed
from .random_state import drawn_apart, mix_seed, seeded
from .sharding import LoaderProxy, ShardedSampler, without_generator

__all__ = [
    "gather_batches",
    "same_batches",
    "share_batches",
    "sum_attributes",
    "sum_over_ranks",
]

_MISSING = object()
_shares: WeakKeyDictionary[DataLoader, DataLoader] = WeakKeyDictionary()
_iterations: WeakKeyDictionary[DataLoader, int] = WeakKeyDictionary()  # how often `same_batches` was drawn from it


class BatchShare(Sampler):
    """Every `world_size`-th batch of a batch sampler. All ranks draw the same order, a new one per iteration."""

    def __init__(self, batch_sampler: Any) -> None:
        self.batch_sampler = without_generator(batch_sampler)
        if hasattr(self.batch_sampler, "sampler"):
            self.batch_sampler.sampler = without_generator(self.batch_sampler.sampler)
        self._iteration = 0

    def __iter__(self) -> Iterator[Any]:
        with seeded(mix_seed(self._iteration)):  # the ranks' own streams would give each another order
            batches = list(self.batch_sampler)
        self._iteration += 1
        return islice(iter(batches), get_rank(), None, get_world_size())

    def __len__(self) -> int:
        return len(range(get_rank(), len(self.batch_sampler), get_world_size()))


def share_batches(batches: Iterable[Any]) -> Iterable[Any]:
    """Return this rank's batches of an evaluation: of a DataLoader a loader that reads no other ones.

    Ranks can have different numbers of batches, or none, so nothing collective may happen per batch. While they are
    used, also with gradients (an attack, a gradient penalty), models in evaluation mode and losses are this rank's own.
    """
    if not is_distributed():
        return batches
    if isinstance(batches, DataLoader) and not isinstance(batches.dataset, IterableDataset):
        if isinstance(batches.sampler, ShardedSampler):  # of distribute_loader: its batches are this rank's already
            return batches
        if batches not in _shares:
            _shares[batches] = _with_share(batches)
        return _shares[batches]
    return while_sharing(islice(batches, get_rank(), None, get_world_size()))


def same_batches(loader: DataLoader) -> Iterable[Any]:
    """Return the batches of an evaluation that every rank runs whole: the same ones on all, in the same order.

    What the loader draws (an order, crops) comes from a common stream, another one in each iteration, so that all
    ranks get one figure and take one decision. Every rank must iterate as often as the others.
    """
    return _SameBatches(loader) if is_distributed() else loader


class _SharedLoader(LoaderProxy):
    """A loader with the batches of this rank only."""

    def __iter__(self) -> Iterator[Any]:
        return while_sharing(iter(self.__dict__["_loader"]))


class _SameBatches:
    def __init__(self, loader: DataLoader) -> None:
        self._loader = loader

    def __iter__(self) -> Iterator[Any]:
        number = _iterations.get(self._loader, 0)
        _iterations[self._loader] = number + 1
        return drawn_apart(self._loader, mix_seed(number), 1)

    def __len__(self) -> int:
        return len(self._loader)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


def sum_over_ranks(*values: Any, of: DataLoader | None = None) -> Any:
    """Return the sums over all ranks of numbers, arrays or tensors, each of its own type; one value comes back bare.

    With `of`, the loader that they come from, only where that gives each rank a share of its own. Collective: every
    rank, the same number of values. Sums are formed in rank order, so all ranks have the same bits.
    """
    if is_distributed() and _is_share(of):
        values = tuple(_sum(of_ranks) for of_ranks in zip(*_gather(values)))
    return values if len(values) != 1 else values[0]


def gather_batches(*lists: list[Any]) -> Any:
    """Return lists with one entry per batch as one process would have filled them; one list comes back bare.

    Collective: every rank, the same number of lists, each filled in a loop over `share_batches`.
    """
    if is_distributed():
        lists = tuple(_interleave(of_ranks) for of_ranks in zip(*_gather(lists)))
    return lists if len(lists) != 1 else lists[0]


def sum_attributes(meter: Any, *names: str, of: DataLoader | None = None, **derived: Callable[[Any], Any]) -> None:
    """Sum attributes of an object over all ranks, then set those that follow from them; `of` as in `sum_over_ranks`.

    `sum_attributes(meter, "sum", "count", avg=lambda m: m.sum / m.count)`. Collective: every rank.
    """
    if not is_distributed() or not _is_share(of):
        return
    totals = [_sum(of_ranks) for of_ranks in zip(*_gather(tuple(getattr(meter, name) for name in names)))]
    for name, total in zip(names, totals):
        setattr(meter, name, total)
    for name, formula in derived.items():
        setattr(meter, name, formula(meter))


def _is_share(loader: DataLoader | None) -> bool:
    return loader is None or isinstance(loader.sampler, ShardedSampler)


def _with_share(loader: DataLoader) -> DataLoader:
    import copy

    share = copy.copy(loader)
    place = "batch_sampler" if loader.batch_sampler is not None else "sampler"
    # A loader refuses to change its own sampler after it was built.
    object.__setattr__(share, place, BatchShare(getattr(loader, place)))
    object.__setattr__(share, "_iterator", None)
    return _SharedLoader(share)  # type: ignore[return-value]


def _gather(values: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    """Return the values of all ranks. Tensors come from the GPU of each rank to that of this one."""
    return [tuple(_here(value) for value in of_rank) for of_rank in gather_objects(tuple(map(_portable, values)))]


class _OnGPU:
    """A tensor on its way between two GPUs."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor.cpu()


def _portable(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return _OnGPU(value.detach()) if value.is_cuda else value.detach()
    return [_portable(entry) for entry in value] if isinstance(value, list) else value


def _here(value: Any) -> Any:
    if isinstance(value, _OnGPU):
        return value.tensor.to(get_device())
    return [_here(entry) for entry in value] if isinstance(value, list) else value


def _sum(values: tuple[Any, ...]) -> Any:
    total = values[0]
    for value in values[1:]:
        total = total + value
    return total


def _interleave(lists: tuple[list[Any], ...]) -> list[Any]:
    rows = zip_longest(*lists, fillvalue=_MISSING)
    return [entry for row in rows for entry in row if entry is not _MISSING]


_depth = 0


def is_sharing() -> bool:
    """Return whether batches of `share_batches` are being used."""
    return _depth > 0


def while_sharing(batches: Iterable[Any]) -> Iterator[Any]:
    """Yield batches of this rank alone."""
    global _depth
    _depth += 1
    try:
        yield from batches
    finally:
        _depth -= 1
