"""Training loaders over all ranks, and the batch sizes that follow from them; the identity outside a group."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from types import FrameType
from typing import Any

import torch
from torch.utils.data import DataLoader

from .batch import Batch, gather_batch, open_batches
from .collectives import broadcast_object
from .deadlock import begin_step
from .options import get_option
from .process_group import get_world_size, require_group
from .random_state import split_random_streams
from .sharding import LoaderProxy, ShardedSampler, loader_workers, shard_loader

__all__ = [
    "DistributedLoader",
    "distribute_loader",
    "gather_batch",
    "loader_workers",
    "micro_batch",
    "own_batch_size",
    "samples_per_step",
    "set_epoch",
]

_calls: Counter[tuple[str, int]] = Counter()  # of distribute_loader, by the place in the script


class DistributedLoader(LoaderProxy):
    """A training loader over this rank's shard. It tells `open_batches` which batch it has yielded."""

    def __init__(self, loader: DataLoader, at_first: Callable[[], None]) -> None:
        super().__init__(loader)
        self.__dict__["_at_first"] = at_first  # called when the first iteration begins

    def split_streams(self) -> None:
        """Let this rank draw random numbers of its own from now on, once; the first iteration does it otherwise."""
        self.__dict__.pop("_at_first", lambda: None)()

    def __iter__(self) -> Iterator[Any]:
        self.split_streams()
        sampler, iteration = self.sampler, object()
        try:
            for number, batch in enumerate(iter(self.__dict__["_loader"])):
                begin_step(f"batch {number + 1} of epoch {sampler.epoch + 1}")
                own = Batch(sampler.batch_length(number), sampler.batch_size, sampler.batch_weight(number))
                open_batches.begin(iteration, own)
                yield batch
        finally:
            open_batches.end(iteration)


def distribute_loader(loader: DataLoader, *, seed: int | None = None, accum_steps: int = 1) -> DataLoader:
    """Return a training loader over this rank's shard of `loader`'s samples.

    The loader's batch size counts samples per rank, or over all ranks and `accum_steps` micro batches with `--batch
    global`. From its first iteration on every rank draws random numbers of its own, so that no two ranks augment the
    same way; what a script draws before (weights, a fixed order of the pixels) is the same on all. A loader that is
    created again in each epoch, by the same line, has a new order each time. `seed`, of the order and the streams, is
    rank 0's torch.initial_seed() by default. Collective: every rank. Raises what `shard_loader` and `micro_batch`
    raise, and RuntimeError before setup_distributed.
    """
    require_group("distribute_loader")
    if loader.batch_size is None:
        return shard_loader(loader)
    if seed is None:
        seed = broadcast_object(torch.initial_seed()) % 2**31  # or the shards of an unseeded script would overlap
    size = micro_batch(loader.batch_size, accum_steps)
    sharded = shard_loader(loader, seed=seed, batch_size=size, accum_steps=accum_steps)
    if not isinstance(sharded.sampler, ShardedSampler):
        return sharded
    sharded.sampler.set_epoch(_times_called_at(sys._getframe(1)))  # each epoch may create a loader of its own
    return DistributedLoader(sharded, partial(split_random_streams, seed))  # type: ignore[return-value]


def _times_called_at(frame: FrameType) -> int:
    """Return how often this was asked before for the same line of the script."""
    place = frame.f_code.co_filename, frame.f_lineno
    _calls[place] += 1
    return _calls[place] - 1


def set_epoch(loader: DataLoader, epoch: int) -> None:
    """Choose the order of a training loader's next iteration by the number of the epoch, for runs that are continued.

    A loader whose sampler has no `set_epoch`, one that is not sharded, is left alone.
    """
    if hasattr(loader.sampler, "set_epoch"):
        loader.sampler.set_epoch(epoch)


def micro_batch(batch_size: int, accum_steps: int = 1) -> int:
    """Return the number of samples in one rank's micro batch.

    That is `batch_size`, or with `--batch global` its part of a step of `accum_steps` micro batches on all ranks.
    Raises ValueError for sizes below 1, and for a global batch that cannot be split evenly.
    """
    for name, value in (("batch size", batch_size), ("accum_steps", accum_steps)):
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
    if get_option("batch") != "global":
        return batch_size
    world_size = get_world_size()
    parts = world_size * accum_steps
    if batch_size % parts:
        lower, upper = batch_size // parts * parts, (batch_size // parts + 1) * parts
        by = f"world size ({world_size})" + (f" x accum_steps ({accum_steps})" if accum_steps > 1 else "")
        use = f"{lower} or {upper}" if lower else str(upper)
        raise ValueError(f"global batch ({batch_size}) is not divisible by {by}; use {use}")
    return batch_size // parts


def own_batch_size(batch_size: int) -> int:
    """Return how many samples this rank has of the training batch in use, for what is shaped by the batch size.

    That is `micro_batch(batch_size)`, and fewer in an uneven last batch, which one process may never have had. Raises
    ValueError when a global batch cannot be split evenly.
    """
    return batch_size if get_world_size() == 1 else open_batches.length(micro_batch(batch_size))


def samples_per_step(batch_size: int, accum_steps: int = 1) -> int:
    """Return how many samples all ranks take in an optimizer step of `accum_steps` micro batches.

    `len(samples) // samples_per_step(batch_size)` is the number of steps in an epoch. Raises RuntimeError before
    setup_distributed, and what `micro_batch` raises.
    """
    require_group("samples_per_step")
    return micro_batch(batch_size, accum_steps) * get_world_size() * accum_steps
