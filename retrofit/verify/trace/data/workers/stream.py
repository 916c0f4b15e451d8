"""The workers of a stream: each reads a copy of the dataset and makes batches of its own, inside the process.

A dataset without a sampler is split by its workers as they ask torch for their number. What they read in one process
is what they would read in their own: the same numbers, seeds and turns.
"""

from __future__ import annotations

import copy
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader
from torch.utils.data._utils import fetch
from torch.utils.data._utils import worker as torch_worker

from retrofit.distributed.data.random_state import get_rng_state, set_rng_state


class AskedWorkers(NamedTuple):
    """What a loader is built with, and is not given while it is traced."""

    number: int = 0
    start_method: str | None = None  # "spawn"; None for the default

    @property
    def knows_group(self) -> bool:
        """Whether a worker has the process group of the rank that starts it: only a fork has."""
        return self.start_method in (None, "fork")


class _Worker:
    """One worker: its dataset, its random streams and the batches that it makes."""

    def __init__(self, loader: DataLoader, number: int, asked: AskedWorkers, seed: int) -> None:
        self._asked = asked
        self._dataset = _copied(loader.dataset)
        self._info = torch_worker.WorkerInfo(
            id=number, num_workers=asked.number, seed=seed + number, dataset=self._dataset
        )
        self._streams: Any = None
        with self._at_work():
            _seed(seed, number)
            if loader.worker_init_fn is not None:
                loader.worker_init_fn(number)
            self.fetcher = fetch._IterableDatasetFetcher(
                self._dataset, loader._auto_collation, loader.collate_fn, loader.drop_last
            )

    def fetch(self, index: Any) -> Any:
        with self._at_work():
            return self.fetcher.fetch(index)

    def items(self) -> Iterator[Any]:
        """Yield the samples of its part, one at a time."""
        while True:
            with self._at_work():
                try:
                    item = next(self.fetcher.dataset_iter)
                except StopIteration:
                    return
            yield item

    @contextmanager
    def _at_work(self) -> Iterator[None]:
        """Run the block with this worker's number and random streams, and without a process group it does not have."""
        own, info, is_initialized = get_rng_state(), torch_worker._worker_info, dist.is_initialized
        torch_worker._worker_info = self._info
        if not self._asked.knows_group:
            dist.is_initialized = lambda: False
        if self._streams is not None:
            set_rng_state(self._streams)
        try:
            yield
        finally:
            self._streams = get_rng_state()
            set_rng_state(own)
            torch_worker._worker_info, dist.is_initialized = info, is_initialized


class StreamWorkers:
    """The workers of a pass. In place of torch's fetcher of the pass: `fetch` makes the next batch.

    Workers take turns by batches, and one that has come to the end of its part is left out.
    """

    def __init__(self, loader: DataLoader, asked: AskedWorkers, seed: int) -> None:
        self._workers = [_Worker(loader, number, asked, seed) for number in range(asked.number)]
        self._next = 0

    def fetch(self, index: Any) -> Any:
        """Return the next batch. Raises StopIteration when all workers have come to their end."""
        while self._workers:
            place = self._next % len(self._workers)
            try:
                batch = self._workers[place].fetch(index)
            except StopIteration:
                del self._workers[place]
                self._next = place
            else:
                self._next = place + 1
                return batch
        raise StopIteration

    def fetchers(self) -> list[Any]:
        """Return torch's own fetchers, each with the iterator over the samples of its worker (`dataset_iter`)."""
        return [worker.fetcher for worker in self._workers]

    def items(self) -> Iterator[Any]:
        """Yield the samples of all workers, in turn."""
        waiting = [worker.items() for worker in self._workers]
        while waiting:
            for source in list(waiting):
                try:
                    item = next(source)
                except StopIteration:
                    waiting.remove(source)
                else:
                    yield item


def _seed(seed: int, number: int) -> None:
    """Seed as torch's `_worker_loop` begins."""
    random.seed(seed + number)
    torch.manual_seed(seed + number)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(torch_worker._generate_state(seed, number))


def _copied(dataset: Any) -> Any:
    """Return a copy, as each worker has one. Tensors are shared: a stream reads them.

    A dataset with something that cannot be copied (an open file) is shared but for its attributes.
    """
    own = torch.Tensor.__deepcopy__
    torch.Tensor.__deepcopy__ = lambda tensor, memo: tensor  # type: ignore[method-assign, assignment]
    try:
        return copy.deepcopy(dataset)
    except Exception:
        return copy.copy(dataset)
    finally:
        torch.Tensor.__deepcopy__ = own  # type: ignore[method-assign]
