"""Shard a stream of samples (an IterableDataset) over the ranks, with equal numbers of steps."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from itertools import count, islice
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, get_worker_info

from ..collectives import gather_objects, reduce_tensor_sum
from ..failure.watchdog import begin_step
from ..process.options import get_option
from ..process.process_group import before_joining, get_rank, get_world_size
from .batch import Batch, DrawnAhead, first_sizes, using
from .random_state import drawn_apart, mix_seed, split_random_streams
from .sharding import changed_copy, of_rank, require_main_thread

PIPES: Any = getattr(
    torch.utils.data, "IterDataPipe", ()
)  # streams of which torch's DataLoader gives each rank a part by itself


class ShardedStream(IterableDataset):
    """This rank's part of a stream: each `world_size`-th sample of what every worker reads on every rank.

    All ranks read the whole stream, with the same random numbers. Attributes are those of the stream. Samples come with
    a digest of the first one, by which the ranks see that they read the same.
    """

    def __init__(self, stream: IterableDataset, seed: int) -> None:
        self.__dict__.update(stream=stream, seed=seed, rank=get_rank(), world_size=get_world_size(), epoch=-1)

    def begin(self) -> None:
        """Choose the random numbers of the next epoch; from the first one on this rank draws others of its own."""
        if self.epoch < 0:
            split_random_streams(self.seed)
        self.__dict__["epoch"] += 1

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        worker = get_worker_info()
        seed = mix_seed(self.seed, self.epoch, worker.id if worker else 0)
        _start_pipe(self.stream, mix_seed(self.seed, self.epoch), worker)
        if worker:
            self.begin()  # for the next epoch of a worker that stays
        drawn, digest = drawn_apart(self.stream, seed, number=self.world_size), ""
        while True:
            samples = list(islice(drawn, self.world_size))
            digest = digest or digest_of(samples[:1])
            if self.rank < len(samples):
                yield digest, samples[self.rank]
            if len(samples) < self.world_size:
                return

    def __len__(self) -> int:
        return -(-len(self.stream) // self.world_size)

    def __getattr__(self, name: str) -> Any:
        if name == "stream":  # while it is copied
            raise AttributeError(name)
        return getattr(self.stream, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.stream, name, value)


def digest_of(value: Any) -> str:
    """Return what differs where numbers and texts in a sample differ."""
    parts = hashlib.sha256()
    waiting = [value]
    while waiting:
        part = waiting.pop()
        if isinstance(part, (list, tuple)):
            waiting += part
        elif isinstance(part, dict):
            waiting += [*part, *part.values()]
        elif isinstance(part, (int, float, str, bytes)) or hasattr(part, "__array__"):
            parts.update(repr(part).encode())
    return parts.hexdigest()


class Counting:
    """A DataLoader's `collate_fn` that gives the digest and the number of the samples with each batch."""

    def __init__(self, collate: Any, is_batch: bool) -> None:
        self.collate, self.is_batch = collate, is_batch

    def __call__(self, data: Any) -> tuple[str, int, Any]:
        if self.is_batch:
            return data[0][0], len(data), self.collate([sample for _, sample in data])
        batch = self.collate(data[1])
        return data[0], next(first_sizes(batch), 1) or 1, batch


def _start_pipe(stream: IterableDataset, seed: int, worker: Any) -> None:
    """Let the workers of a data pipe mix it in the same way and read a part each, as in torch's DataLoader."""
    if isinstance(stream, PIPES):
        graph_settings = torch.utils.data.graph_settings
        graph_settings.apply_random_seed(stream, torch.Generator().manual_seed(seed))
        graph_settings.apply_sharding(stream, worker.num_workers if worker else 1, worker.id if worker else 0)


def _read_whole_pipes() -> None:
    """Let torch's DataLoader give every rank all of a data pipe; only `distribute_loader` gives a rank its part."""
    if PIPES:
        torch.utils.data.dataloader._get_distributed_settings = lambda: (1, 0)


before_joining.append(_read_whole_pipes)


def shard_stream(loader: DataLoader, seed: int, batch_size: int | None) -> DataLoader:
    """Return a loader over this rank's part of a stream, for `stream_batches`.

    Raises ValueError where the stream gives whole batches, and a global batch is asked for.
    """
    if batch_size is None and get_option("batch") == "global":
        raise ValueError(
            f"--batch global splits each batch over all ranks, and {type(loader.dataset).__name__} gives whole "
            "ones, of which every rank takes others; leave --batch at per_gpu, or give the DataLoader a batch_size"
        )
    dataset: Any = loader.dataset
    settings = of_rank(loader) | {"dataset": ShardedStream(dataset, seed), "_of_all_ranks": loader}
    if batch_size is not None:
        batches = BatchSampler(loader.sampler, batch_size, loader.drop_last)
        settings |= {"batch_size": batch_size, "batch_sampler": batches}
    return changed_copy(loader, collate_fn=Counting(loader.collate_fn, batch_size is not None), **settings)


def stream_batches(loader: DataLoader, ahead: DrawnAhead) -> Iterator[Any]:
    """Yield this rank's batches of an epoch. Collective at every batch, so in the thread that trains.

    A rank that has no more repeats its last one, which counts nothing, until no rank has any; with `drop_last` the
    epoch ends for all.
    """
    stream: Any = loader.dataset
    require_main_thread(stream.stream)
    stream.begin()
    ahead.begin()
    batches, batch, length = iter(loader), None, 0
    for number in count(1):
        begin_step(f"batch {number} of epoch {stream.epoch + 1}")
        digest, size, drawn = next(batches, ("", 0, None))
        sizes = _sizes(size)
        if number == 1:
            _require_same(stream, digest, sizes)
        if not any(sizes) or (0 in sizes and loader.drop_last):
            ahead.end()
            return
        if size:
            batch, length = drawn, size
        is_in_turn = loader.batch_size is not None and sizes == _in_turn(sum(sizes))
        weight = size * len(sizes) / sum(sizes)
        with using(Batch(length, max(sizes), weight, tuple(sizes), is_in_turn), ahead):
            yield batch


def _in_turn(total: int) -> list[int]:
    """Return how many of so many samples each rank has where these go to the ranks in turn."""
    return [len(range(rank, total, get_world_size())) for rank in range(get_world_size())]


def _require_same(stream: ShardedStream, digest: str, sizes: list[int]) -> None:
    """Raise where the ranks read different samples, or where not every rank has one. Collective."""
    name = type(stream.stream).__name__
    if 0 in sizes and any(sizes):
        raise ValueError(f"{name} has fewer samples than there are ranks ({len(sizes)}); use fewer processes")
    if len(set(gather_objects(digest))) > 1:
        raise RuntimeError(
            f"the ranks read different samples from {name}, so some would be trained on twice and others not at all; "
            "it must draw its random numbers from torch, numpy or random, or from a generator that is seeded the same "
            "on every rank"
        )


def _sizes(size: int) -> list[int]:
    """Return how many samples each rank has."""
    own = torch.zeros(get_world_size(), dtype=torch.int64)
    own[get_rank()] = size
    return reduce_tensor_sum(own).tolist()
