"""Shard the samples of a DataLoader over the ranks, and start its workers safely."""

from __future__ import annotations

import copy
import hashlib
import multiprocessing
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from itertools import chain, cycle, islice
from multiprocessing import forkserver
from typing import Any

from torch.utils.data import BatchSampler, DataLoader, IterableDataset, Sampler

from ..collectives import gather_objects
from ..process.options import get_option
from ..process.process_group import get_rank, get_world_size, is_distributed
from .batch import Batch
from .random_state import drawn_apart, mix_seed, mix_streams, split_random_streams

MOST_INDICES = 50_000_000  # of an order that is held in memory as a whole
NOT_IN_WORKERS = ("debugpy", "pydev", "_pydev", "pytest", "_pytest")  # they would hook into the fork server


class ShardedSampler(Sampler):
    """This rank's part of another sampler's order: every sample once per epoch over all ranks, a new order per epoch.

    Every rank draws the whole order from the same stream, seeded by `(seed, epoch)`, and takes each `world_size`-th
    index. All have the same number of batches: without `drop_last` the last one is split, and where it has fewer
    samples than ranks, the first ones are repeated. Collective at the start of an epoch, where the sampler is not one
    of torch's: raises RuntimeError where the ranks draw different orders.
    """

    kept = False  # whole batches, where they would be split

    def __init__(self, sampler: Any, batch_size: int, *, drop_last: bool = False, seed: int = 0) -> None:
        self.sampler = without_generator(sampler)
        if hasattr(self.sampler, "sampler"):
            self.sampler.sampler = without_generator(self.sampler.sampler)
        self.batch_size, self.drop_last, self.seed = batch_size, drop_last, seed
        self.rank, self.world_size = get_rank(), get_world_size()
        self.epoch, self._next_epoch, self._start = -1, 0, 0
        self._total: int | None = None  # of the epoch, where its order has been drawn

    def set_epoch(self, epoch: int, start: int = 0) -> None:
        """Choose the order of the next iteration, from its `start`-th sample (over all ranks) on; else the next one."""
        self._next_epoch, self._start = epoch, start

    def split_streams(self) -> None:
        """Let this rank draw random numbers of its own from now on, unless a first epoch has begun."""
        if self.epoch < 0:
            split_random_streams(self.seed)
            self.epoch = 0

    def __iter__(self) -> Iterator[Any]:
        self.epoch, start = self._next_epoch, self._start
        self._next_epoch, self._start = self.epoch + 1, 0
        if hasattr(self.sampler, "set_epoch"):
            self.sampler.set_epoch(self.epoch)
        seed = mix_seed(self.seed, self.epoch)
        length = len(self.sampler) if hasattr(self.sampler, "__len__") else 0
        most = length if length <= MOST_INDICES else 0
        number = 2**16 if length else self.batch_size * self.world_size
        drawn = islice(drawn_apart(self.sampler, seed, number), start, None)
        order = list(islice(drawn, most + 1))
        if len(order) > most:  # it may never end, whatever its length: RandomSampler(num_samples=10**10)
            return self._in_parts(chain(order, drawn))
        self._check(order)
        self._begin(order, start)
        return islice(cycle(order), self.rank, self._num_used(len(order)), self.world_size)

    def _in_parts(self, drawn: Iterator[Any]) -> Iterator[Any]:
        """Yield this rank's part of an order that may have no end, a batch of all ranks at a time."""
        start, whole = 0, self.batch_size * self.world_size
        while True:
            part = list(islice(drawn, whole))
            if start == 0:
                self._check(part)
            self._begin(part, start)
            yield from islice(cycle(part), self.rank, self._num_used(len(part)), self.world_size)
            if len(part) < whole:
                return
            start += whole

    def _begin(self, drawn: list[Any], start: int) -> None:
        """Note what was drawn of an epoch, from its `start`-th sample on."""
        self._total = start + len(drawn)

    def _check(self, order: list[Any]) -> None:
        kinds = {type(self.sampler), type(getattr(self.sampler, "sampler", self.sampler))}
        if all(kind.__module__.startswith("torch.utils.data") for kind in kinds):
            return
        require_main_thread(self.sampler)
        digests = gather_objects(hashlib.sha256(repr(order).encode()).hexdigest())
        if len(set(digests)) > 1:
            raise RuntimeError(
                f"the ranks draw different orders from {type(self.sampler).__name__}, so samples would be trained on "
                "twice and others not at all; it must draw its random numbers from torch, numpy or random, or from a "
                "generator that is seeded the same on every rank"
            )

    def __len__(self) -> int:
        """The number of this rank's samples in a whole epoch."""
        return len(range(self.rank, self._num_used(len(self.sampler)), self.world_size))

    @property
    def is_even(self) -> bool:
        """Whether every rank has as many samples in each batch, the last one included."""
        return self.drop_last or (hasattr(self.sampler, "__len__") and len(self.sampler) % self.world_size == 0)

    def batch(self, number: int) -> Batch:
        """Return this rank's part of an epoch's batch `number`: length with repeated samples, weight without."""
        whole = self.batch_size * self.world_size
        drawn = len(self.sampler) if self._total is None else self._total
        total = max(1, min(whole, drawn - number * whole))
        of_ranks = tuple(len(range(rank, total, self.world_size)) for rank in range(self.world_size))
        own = of_ranks[self.rank]
        return Batch(max(own, 1), self.batch_size, own * self.world_size / total, of_ranks)

    def _num_used(self, total: int) -> int:
        """Return how many of `total` samples, repeated ones included, give all ranks the same number of batches."""
        tail = total % (self.batch_size * self.world_size)
        if self.drop_last:
            return total - tail
        return total + self.world_size - tail if 0 < tail < self.world_size else total


class ShardedBatches(ShardedSampler):
    """This rank's part of the batches of a batch sampler: whole ones, the first of each `world_size` to rank 0.

    With `splits` its part of each batch, so that all ranks together have the batch of one process; all of it where they
    are `kept`. A batch counts by its number of samples; where not every rank has one, or has a sample of one, some are
    repeated and count nothing.
    """

    def __init__(self, batches: Any, seed: int, splits: bool) -> None:
        super().__init__(batches, 1, seed=seed)
        self.part: tuple[int, int] | None = None
        if splits:
            self.part = self.rank, self.world_size
            self.rank, self.world_size = 0, 1  # of whole batches every rank draws all
        self._sizes: dict[int, tuple[list[int], int]] = {}  # of all ranks' batches, and of this rank's, by number
        self._full = 0

    def __iter__(self) -> Iterator[Any]:
        drawn = super().__iter__()
        if self.part is None or self.kept:
            return drawn
        rank, world_size = self.part
        return (list(batch[rank::world_size]) or list(batch[:1]) for batch in map(list, drawn))

    def _begin(self, drawn: list[Any], start: int) -> None:
        super()._begin(drawn, start)
        sizes = [len(batch) for batch in drawn]
        self._full = max([self._full if start else 0, *sizes])
        if start == 0:
            self._sizes = {}
        for first in range(0, len(sizes), self.world_size):
            own = sizes[(first + self.rank) % len(sizes)]
            self._sizes[(start + first) // self.world_size] = sizes[first : first + self.world_size], own

    @property
    def is_even(self) -> bool:
        return False

    def batch(self, number: int) -> Batch:
        """Return this rank's batch `number` of an epoch: its length, and its weight by the samples of all ranks."""
        self._sizes.pop(number - 1, None)
        sizes, length = self._sizes[number]
        total, full = sum(sizes), self._full
        if self.part is None:
            rank, world_size = self.rank, self.world_size
            of_ranks = (*sizes, *[0] * (world_size - len(sizes)))
        elif self.kept:
            return whole_batch(total)
        else:
            rank, world_size = self.part
            of_ranks = tuple(len(range(other, total, world_size)) for other in range(world_size))
            length, full = max(of_ranks[rank], 1), -(-full // world_size)
        return Batch(length, full, of_ranks[rank] * world_size / total, of_ranks, is_in_turn=self.part is not None)


def whole_batch(length: int) -> Batch:
    """Return a batch that every rank has all of: rank 0's counts. Warns of the time that this takes."""
    if get_rank() == 0:
        text = "--batch global, and batches that are not split: every rank computes them whole, and rank 0's count, so "
        text += "more ranks save no time; leave --batch at per_gpu: each rank then takes whole batches in turn"
        warnings.warn(text, stacklevel=2)
    weight, of_ranks = 0 if get_rank() else get_world_size(), (length, *[0] * (get_world_size() - 1))
    return Batch(1, 1, float(weight), of_ranks, is_in_turn=False)


class DistributedLoader:
    """A loader with the attributes and class of `loader`, and the script's batch size; yields `iterate(loader)`."""

    def __init__(self, loader: DataLoader, iterate: Callable[[DataLoader], Iterator[Any]]) -> None:
        self.__dict__.update(_loader=loader, _iterate=iterate, _whole=getattr(loader, "_of_all_ranks", loader))

    def __iter__(self) -> Iterator[Any]:
        return self._iterate(self._loader)

    def __len__(self) -> int:
        length, whole = len(self._loader), self._whole
        is_of_all = not isinstance(whole.dataset, IterableDataset) and length == DataLoader.__len__(whole)
        return DataLoader.__len__(self._loader) if is_of_all else length  # a class may count its batches in __init__

    def __getattr__(self, name: str) -> Any:
        if name == "_loader":  # while it is copied
            raise AttributeError(name)
        return getattr(self._whole if name == "batch_size" else self._loader, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._loader, name, value)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:  # so that isinstance(loader, DataLoader) holds
        return type(self._loader)


def shard_loader(
    loader: DataLoader, *, seed: int = 0, batch_size: int | None = None, accum_steps: int = 1
) -> DataLoader:
    """Return a loader over this rank's shard of `loader`'s samples, `batch_size` at a time; outside a group, over all.

    Of a batch sampler of the script the ranks take whole batches, or a part of each with `--batch global`. Raises
    ValueError for fewer samples than ranks or than a global batch that must be whole, TypeError for an IterableDataset.
    """
    batch_size = batch_size or size_of_batches(loader)
    _require_shardable(loader, batch_size, accum_steps)
    if not is_distributed() and batch_size == size_of_batches(loader):
        return loader
    drawn: Any = loader.batch_sampler
    settings: dict[str, Any] = {} if batch_size is None else {"batch_size": batch_size}
    if batch_size is None:
        sampler: Any = ShardedBatches(drawn, seed, splits=get_option("batch") == "global")
        batches = sampler
    else:
        sampler = drawn.sampler
        if is_distributed():
            sampler = ShardedSampler(sampler, batch_size, drop_last=drawn.drop_last, seed=seed)
        batches = BatchSampler(sampler, batch_size, drawn.drop_last)
    if is_distributed():
        settings |= of_rank(loader) | {"_of_all_ranks": loader}
    return changed_copy(loader, sampler=sampler, batch_sampler=batches, **settings)


def size_of_batches(loader: DataLoader) -> int | None:
    """Return how many samples the batches of a loader have; None where the script composes them itself."""
    batches = loader.batch_sampler
    return batches.batch_size if type(batches) is BatchSampler else loader.batch_size


def of_rank(loader: DataLoader) -> dict[str, Any]:
    """Return the settings by which the workers of this rank draw random numbers of their own."""
    # A common generator would give the workers of all ranks the same seeds, hence the same augmentation.
    return {"generator": None, "worker_init_fn": WorkerOfRank(loader.worker_init_fn, get_rank())}


def changed_copy(loader: DataLoader, **settings: Any) -> DataLoader:
    """Return a copy of `loader`, of its own class and with all its other settings."""
    copied = copy.copy(loader)
    for name, value in {"_iterator": None, **settings}.items():
        object.__setattr__(copied, name, value)  # DataLoader itself refuses to change after it was built
    return copied


def require_main_thread(drawn: Any) -> None:
    """Raise RuntimeError where a thread of the script draws what the ranks have to compare while they draw it."""
    if threading.current_thread() is not threading.main_thread():
        raise RuntimeError(
            f"a thread draws batches from {type(drawn).__name__}, over which all ranks communicate, and the gradients "
            "of the training would get in between; draw them in the loop that trains, without the thread"
        )


def without_generator(sampler: Any) -> Any:
    """Return a copy of `sampler` that draws from the global stream, which the callers seed identically on all ranks."""
    sampler = copy.copy(sampler)
    if getattr(sampler, "generator", None) is not None:
        sampler.generator = None
    return sampler


def _require_shardable(loader: DataLoader, batch_size: int | None, accum_steps: int) -> None:
    if is_distributed() and isinstance(loader.dataset, IterableDataset):
        raise TypeError(
            f"cannot shard the IterableDataset {type(loader.dataset).__name__} by its indices; use distribute_loader"
        )
    if is_distributed() and loader.batch_sampler is None:
        raise TypeError(
            f"cannot shard a loader of {type(loader.dataset).__name__} with batch_size=None; give it a batch_size"
        )
    sampler: Any = getattr(loader.batch_sampler, "sampler", None)
    total = len(sampler) if hasattr(sampler, "__len__") else -1  # without one it has no end
    if batch_size is None or total < 0 or not (total or type(sampler).__module__.startswith("torch.")):
        return
    global_batch = batch_size * get_world_size() * accum_steps
    if total == 0 or (loader.batch_sampler.drop_last and total < global_batch):  # type: ignore[union-attr]
        accumulated = f" x {accum_steps} accumulation steps" if accum_steps > 1 else ""
        raise ValueError(
            f"the training set has {total} samples, fewer than one global batch of {global_batch} ({batch_size} "
            f"per rank x {get_world_size()} ranks{accumulated}); use a smaller batch size, fewer processes or more data"
        )
    if total < get_world_size():
        raise ValueError(
            f"the training set has {total} samples, fewer than the {get_world_size()} processes that would share them; "
            f"start {total} of them at most"
        )


def loader_workers(num_workers: int) -> dict[str, Any]:
    """Return the DataLoader settings that start `num_workers` workers safely on a rank; `DataLoader(..., **these)`.

    In a process group they come from a fork server, and leave SIGINT and SIGTERM to their rank: a plain fork of a
    process with gloo or nccl threads can hang. The dataset must be picklable. Outside a group only the number is set.
    """
    if num_workers == 0 or not is_distributed():
        return {"num_workers": num_workers}
    # What the server has imported, no worker of any epoch has to import again.
    files = {name: getattr(module, "__file__", None) or "" for name, module in list(sys.modules.items())}
    packages = [name for name, file in files.items() if "-packages" in file and name.count(".") < 3]
    multiprocessing.set_forkserver_preload([name for name in packages if not name.startswith(NOT_IN_WORKERS)])
    # Ignored signals are inherited from the first moment on; a handler set in the worker would leave a gap.
    in_main_thread = threading.current_thread() is threading.main_thread()
    numbers = (signal.SIGINT, signal.SIGTERM) if in_main_thread else ()
    handlers = [signal.signal(number, signal.SIG_IGN) for number in numbers]
    try:
        forkserver.ensure_running()
    finally:
        for number, handler in zip(numbers, handlers):
            signal.signal(number, handler)
    return {"num_workers": num_workers, "multiprocessing_context": "forkserver"}


class WorkerOfRank:
    """A DataLoader's `worker_init_fn`: the worker ends when its rank does, and what `init` seeds differs by `rank`."""

    def __init__(self, init: Callable[[int], Any] | None, rank: int | None = None) -> None:
        self.init, self.rank = init, rank

    def __call__(self, worker_id: int) -> None:
        threading.Thread(target=_end_with_rank, daemon=True).start()
        if self.init is not None:
            self.init(worker_id)
            if self.rank is not None:
                mix_streams(self.rank)


def _end_with_rank() -> None:
    rank = multiprocessing.parent_process()
    assert rank is not None
    rank.join()
    os._exit(1)  # the main thread may be anywhere, and nothing reads its batches any more
