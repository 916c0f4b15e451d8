"""Split an evaluation over the ranks by whole batches, and reduce its results.

Each rank evaluates some of the very batches that one process would evaluate, so sums over batches and lists of their
results are those of one process. Outside a group everything is the identity.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any
from weakref import WeakKeyDictionary

from torch.utils.data import DataLoader, IterableDataset, Sampler

from .collectives import broadcast_object
from .data.batch import gather_values, in_turn
from .data.loaders import is_shard, whole_loader
from .data.random_state import get_rng_state, set_rng_state, share_random_state
from .data.sharding import DistributedLoader, WorkerOfRank, changed_copy
from .process.process_group import get_rank, get_world_size, is_distributed

__all__ = [
    "gather_batches",
    "same_batches",
    "share_batches",
    "sum_attributes",
    "sum_over_ranks",
]

_shares: WeakKeyDictionary[DataLoader, Any] = WeakKeyDictionary()  # of share_batches
_depth = 0  # of iterations over batches that this rank alone evaluates


def share_batches(batches: Iterable[Any]) -> Iterable[Any]:
    """Return this rank's batches of an evaluation: of a DataLoader a loader that reads no other ones.

    Of a shard they are those of its whole loader. Ranks can have different numbers, or none, so nothing collective may
    happen per batch. While they are used, also with gradients, models in evaluation mode and losses are the rank's own.
    """
    if not is_distributed():
        return batches
    batches = whole_loader(batches)
    if not isinstance(batches, DataLoader) or isinstance(batches.dataset, IterableDataset):
        return _while_sharing(islice(batches, get_rank(), None, get_world_size()))
    if batches not in _shares:
        place = "sampler" if batches.batch_sampler is None else "batch_sampler"
        sampler = _InTurn(getattr(batches, place))
        share = changed_copy(batches, worker_init_fn=WorkerOfRank(batches.worker_init_fn), **{place: sampler})
        _shares[batches] = DistributedLoader(share, _while_sharing)
    return _shares[batches]


class _InTurn(Sampler):
    """This rank's part of what rank 0 draws from a sampler: each `world_size`-th. Collective as it begins: every rank.

    So what a script seeds just before an evaluation chooses the batches, as in one process.
    """

    def __init__(self, sampler: Any) -> None:
        self.sampler = sampler

    def __iter__(self) -> Iterator[Any]:
        order: Any = broadcast_object(list(self.sampler) if get_rank() == 0 else None)
        yield from order[get_rank() :: get_world_size()]

    def __len__(self) -> int:
        return len(range(get_rank(), len(self.sampler), get_world_size()))


def _while_sharing(batches: Iterable[Any]) -> Iterator[Any]:
    global _depth
    _depth += 1
    try:
        yield from batches
    finally:
        _depth -= 1


def is_sharing() -> bool:
    """Return whether batches of `share_batches` or `same_batches` are being used."""
    return _depth > 0


def same_batches(loader: DataLoader) -> Iterable[Any]:
    """Return the batches of an evaluation that every rank runs whole, also of a shard: the same draws and order on all.

    What is drawn while they are used, for a mask or noise, comes from rank 0's streams, so what the script seeds just
    before is that of one process. Then each rank continues with its own. Every rank must iterate as often as others.
    """
    return DistributedLoader(whole_loader(loader), _same_pass) if is_distributed() else loader


def _same_pass(loader: DataLoader) -> Iterator[Any]:
    own = get_rng_state()
    share_random_state()
    try:
        yield from _while_sharing(loader)
    finally:
        if get_rank() > 0:
            set_rng_state(own)


def sum_over_ranks(*values: Any, of: DataLoader | None = None) -> Any:
    """Return the sums over all ranks of numbers, arrays or tensors, each of its own type; one value comes back bare.

    With `of`, the loader that they come from, only where that gives each rank a share of its own. Collective: every
    rank, the same number of values. Sums are formed in rank order, so all ranks have the same bits.
    """
    if is_distributed() and (of is None or is_shard(of)):
        values = tuple(functools.reduce(operator.add, of_ranks) for of_ranks in zip(*gather_values(values)))
    return values if len(values) != 1 else values[0]


def gather_batches(*lists: list[Any]) -> Any:
    """Return lists with one entry per batch as one process would have filled them; one list comes back bare.

    Collective: every rank, the same number of lists, each filled in a loop over `share_batches`.
    """
    if is_distributed():
        lists = tuple(in_turn(of_ranks) for of_ranks in zip(*gather_values(lists)))
    return lists if len(lists) != 1 else lists[0]


def sum_attributes(meter: Any, *names: str, of: DataLoader | None = None, **derived: Callable[[Any], Any]) -> None:
    """Sum attributes of an object over all ranks, then set those that follow from them; `of` as in `sum_over_ranks`.

    `sum_attributes(meter, "sum", "count", avg=lambda m: m.sum / m.count)`. Collective: every rank.
    """
    if not is_distributed() or (of is not None and not is_shard(of)):
        return
    for name in names:
        setattr(meter, name, sum_over_ranks(getattr(meter, name)))
    for name, formula in derived.items():
        setattr(meter, name, formula(meter))
