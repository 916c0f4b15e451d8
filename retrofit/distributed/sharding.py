"""Shard the samples of a DataLoader over the ranks, and start its workers safely."""

from __future__ import annotations

import copy
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from multiprocessing import forkserver
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, Sampler

from .process_group import get_rank, get_world_size, is_distributed
from .random_state import drawn_apart, init_worker_apart, mix_seed, seeded

MOST_INDICES = 50_000_000  # of an order that is held in memory as a whole


class ShardedSampler(Sampler):
    """This rank's part of another sampler's order: every sample once per epoch over all ranks, a new order per epoch.

    Every rank draws the inner sampler's whole order from the same stream, seeded by `(seed, epoch)`, and takes each
    `world_size`-th index; so random, weighted and custom samplers keep their meaning. One global batch of N ranks
    holds the samples that one process would have drawn. All ranks have the same number of batches: with `drop_last`
    the samples behind the last whole global batch are left out (a different few each epoch); without it the last
    batch is shared out, and only when it has fewer samples than ranks, the epoch's first ones are repeated.
    """

    def __init__(
        self,
        sampler: Any,
        batch_size: int,
        *,
        drop_last: bool = False,
        seed: int = 0,
        rank: int | None = None,
        world_size: int | None = None,
    ) -> None:
        self.sampler = without_generator(sampler)
        self.batch_size = batch_size
        self.drop_last = drop_last
        self.seed = seed
        self.rank = get_rank() if rank is None else rank
        self.world_size = get_world_size() if world_size is None else world_size
        self.epoch = -1
        self._next_epoch, self._start = 0, 0

    def set_epoch(self, epoch: int, start: int = 0) -> None:
        """Choose the order of the next iteration, from its `start`-th sample (over all ranks) on.

        Without a call every iteration is the next epoch, so an order is never repeated by accident.
        """
        self._next_epoch, self._start = epoch, start

    def __iter__(self) -> Iterator[int]:
        self.epoch, start = self._next_epoch, self._start
        self._next_epoch, self._start = self.epoch + 1, 0
        if len(self.sampler) > MOST_INDICES:
            return self._share_of_long(start)
        order = self._order(self.epoch)[start:]
        num_used = self._num_used(len(order))
        num_repeated = max(0, num_used - len(order))
        order = order[:num_used] + (order * num_repeated)[:num_repeated]
        return iter(order[self.rank :: self.world_size])

    def __len__(self) -> int:
        """The number of this rank's samples in a whole epoch."""
        return len(range(self.rank, self._num_used(len(self.sampler)), self.world_size))

    def batch_length(self, number: int) -> int:
        """Return the number of samples in this rank's share of an epoch's batch `number`, repeated ones included."""
        return min(self.batch_size, len(self) - number * self.batch_size)

    def batch_weight(self, number: int) -> float:
        """Return `world_size * own / all` samples of a batch, repeated ones left out: 1 for all but an uneven last one.

        Weighted so, the ranks' means average to the mean over the whole batch.
        """
        total = min(self.batch_size * self.world_size, len(self.sampler) - number * self.batch_size * self.world_size)
        own = len(range(self.rank, total, self.world_size))
        return 1.0 if own * self.world_size == total else own * self.world_size / total

    def _share_of_long(self, start: int) -> Iterator[int]:
        """Draw as it is needed from a sampler that never ends in practice: RandomSampler(num_samples=10**10)."""
        sampler, seed = copy.copy(self.sampler), mix_seed(self.seed, self.epoch)
        if hasattr(sampler, "generator"):
            sampler.generator = torch.Generator().manual_seed(seed)
        else:  # one of the project's own, which draws from the common streams
            sampler = drawn_apart(sampler, seed, self.batch_size * self.world_size)
        return islice(iter(sampler), start + self.rank, self._num_used(len(self.sampler)), self.world_size)

    def _num_used(self, total: int) -> int:
        """Return how many of `total` samples, repeated ones included, give all ranks the same number of batches."""
        tail = total % (self.batch_size * self.world_size)
        if self.drop_last:
            return total - tail
        return total + self.world_size - tail if 0 < tail < self.world_size else total

    def _order(self, epoch: int) -> list[int]:
        if hasattr(self.sampler, "set_epoch"):
            self.sampler.set_epoch(epoch)
        with seeded(mix_seed(self.seed, epoch)):
            return list(self.sampler)


class LoaderProxy:
    """A loader in place of another one: it has the other's attributes and class, and is iterated in its own way."""

    def __init__(self, loader: DataLoader) -> None:
        self.__dict__["_loader"] = loader

    def __iter__(self) -> Iterator[Any]:
        raise NotImplementedError

    def __len__(self) -> int:
        return len(self.__dict__["_loader"])

    def __getattr__(self, name: str) -> Any:
        if "_loader" not in self.__dict__:  # while it is copied
            raise AttributeError(name)
        return getattr(self.__dict__["_loader"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.__dict__["_loader"], name, value)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:  # so that isinstance(loader, DataLoader) holds
        return type(self.__dict__["_loader"])


def shard_loader(
    loader: DataLoader, *, seed: int = 0, batch_size: int | None = None, accum_steps: int = 1
) -> DataLoader:
    """Return a training loader over this rank's shard of `loader`'s samples; outside a group, of all of them.

    `batch_size`, by default that of the loader, is the number of samples per rank and micro batch. Sampler, collate
    function and all other settings are kept; what a `worker_init_fn` seeds differs by rank afterwards.

    Raises ValueError when the dataset is smaller than one global batch that must be whole, TypeError for an
    IterableDataset or a custom batch sampler, whose order cannot be shared out from outside.
    """
    batch_size = batch_size or loader.batch_size
    _require_at_least_one_batch(loader, batch_size, accum_steps)
    if not is_distributed():
        return loader if batch_size == loader.batch_size else _with_sampler(loader, loader.sampler, batch_size)
    _require_map_style(loader)
    assert batch_size is not None
    sampler = ShardedSampler(loader.sampler, batch_size, drop_last=loader.drop_last, seed=seed)
    sharded = _with_sampler(loader, sampler, batch_size)
    own = own_init_function(loader.worker_init_fn)
    if own is not None:
        sharded.worker_init_fn = EndsWithItsRank(partial(init_worker_apart, own, get_rank()))
    return sharded


def without_generator(sampler: Any) -> Any:
    """Return a copy of `sampler` that draws from the global stream, which the callers seed alike on all ranks."""
    sampler = copy.copy(sampler)
    if getattr(sampler, "generator", None) is not None:
        sampler.generator = None
    return sampler


def loader_workers(num_workers: int) -> dict[str, Any]:
    """Return the DataLoader settings that start `num_workers` workers safely on a rank; `DataLoader(..., **these)`.

    In a process group workers come from a fork server, and leave SIGINT and SIGTERM to their rank. A plain fork copies
    a process in which gloo or nccl threads run, and on CPython up to 3.11 the child waits forever when one of them
    was just entering the interpreter. The dataset must be picklable. Outside a group nothing but the number is set.
    """
    if num_workers == 0 or not is_distributed():
        return {"num_workers": num_workers}
    _start_fork_server()
    return {"num_workers": num_workers, "multiprocessing_context": "forkserver"}


def _start_fork_server() -> None:
    # What it has imported, no worker of any epoch has to import again.
    multiprocessing.set_forkserver_preload(_imported_packages())
    # Ignored signals are inherited from the first moment on; a handler set in the worker would leave a gap.
    in_main_thread = threading.current_thread() is threading.main_thread()
    numbers = (signal.SIGINT, signal.SIGTERM) if in_main_thread else ()
    handlers = [signal.signal(number, signal.SIG_IGN) for number in numbers]
    try:
        forkserver.ensure_running()
    finally:
        for number, handler in zip(numbers, handlers):
            signal.signal(number, handler)


def _imported_packages() -> list[str]:
    """Return the installed modules that this process has imported, down to `package.module.submodule`."""
    return [
        name
        for name, module in list(sys.modules.items())
        if name.count(".") < 3
        and "-packages" in (getattr(module, "__file__", None) or "")
        and not name.startswith(("debugpy", "pydev", "_pydev", "pytest", "_pytest"))  # they would hook into the server
    ]


def _require_map_style(loader: DataLoader) -> None:
    if isinstance(loader.dataset, IterableDataset):
        raise TypeError(
            f"cannot shard the IterableDataset {type(loader.dataset).__name__}: its order lives inside it; yield only "
            "every world_size-th sample there (get_rank, get_world_size), or make it a map-style dataset"
        )
    if type(loader.batch_sampler) is not BatchSampler:
        raise TypeError(
            f"cannot shard a loader with the batch sampler {type(loader.batch_sampler).__name__}; give the DataLoader "
            "a sampler and a batch_size, or share the batches out inside the batch sampler"
        )


def _require_at_least_one_batch(loader: DataLoader, batch_size: int | None, accum_steps: int) -> None:
    if isinstance(loader.dataset, IterableDataset) or batch_size is None:
        return
    total: int = len(loader.sampler)  # type: ignore[arg-type]
    global_batch = batch_size * get_world_size() * accum_steps
    if total == 0 or (loader.drop_last and total < global_batch):
        accumulated = f" x {accum_steps} accumulation steps" if accum_steps > 1 else ""
        raise ValueError(
            f"the training set has {total} samples, fewer than one global batch of {global_batch} ({batch_size} "
            f"per rank x {get_world_size()} ranks{accumulated}); use a smaller batch size, fewer processes or more data"
        )


def _with_sampler(loader: DataLoader, sampler: Any, batch_size: int | None) -> DataLoader:
    """Return a copy of `loader`, of its own class and with all its settings, that draws from `sampler`."""
    assert batch_size is not None
    copied = copy.copy(loader)
    settings = {
        "batch_size": batch_size,
        "sampler": sampler,
        "batch_sampler": BatchSampler(sampler, batch_size, loader.drop_last),
        # A common generator would give the workers of all ranks the same seeds, hence the same augmentation.
        "generator": None,
        "_iterator": None,
        "worker_init_fn": EndsWithItsRank(own_init_function(loader.worker_init_fn)),
    }
    for name, value in settings.items():
        object.__setattr__(copied, name, value)  # DataLoader itself refuses to change after it was built
    return copied


InitFunction = Callable[[int], Any]


class EndsWithItsRank:
    """A DataLoader's `worker_init_fn` that runs `inner` and lets the worker end with the process that started it."""

    def __init__(self, inner: InitFunction | None) -> None:
        self.inner = inner

    def __call__(self, worker_id: int) -> None:
        rank = multiprocessing.parent_process()
        if rank is not None:
            threading.Thread(target=_end_with, args=(rank,), name="retrofit-rank-watch", daemon=True).start()
        if self.inner is not None:
            self.inner(worker_id)


def own_init_function(worker_init_fn: InitFunction | None) -> InitFunction | None:
    """Return what the user gave as a DataLoader's `worker_init_fn`."""
    return worker_init_fn.inner if isinstance(worker_init_fn, EndsWithItsRank) else worker_init_fn


def _end_with(rank: Any) -> None:
    rank.join()
    os._exit(1)  # the main thread may be anywhere, and nobody reads what it makes
