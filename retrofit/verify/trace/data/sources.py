"""Sources of a pass over a loader: a sampler's order, drawn ahead, and a stream's items."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

from retrofit.verify.trace.computation.fingerprint import content_hash

from .workers.stream import StreamWorkers

if TYPE_CHECKING:
    from .passes import TracedIterator


def drawn_ahead(source: Iterator[Any], limit: int) -> tuple[list[Any], Iterator[Any]]:
    """Return the first items of a sampler, and the rest: an error of the sampler comes where it came without us."""
    drawn: list[Any] = []
    try:
        for item in islice(source, limit):
            drawn.append(item)
    except Exception as error:
        return drawn, _raising(error)
    return drawn, source


def _raising(error: Exception) -> Iterator[Any]:
    raise error
    yield


class Pool:
    """Items of a stream in the order in which another run had them, found by their content."""

    def __init__(self, items: Iterator[Any], replayed: list[list[Any]]) -> None:
        self._items, self._wanted = items, iter([name for batch in replayed for name in batch])
        self._waiting: dict[str, Any] = {}

    def __iter__(self) -> Pool:
        return self

    def __next__(self) -> Any:
        name = next(self._wanted)
        while name not in self._waiting:
            item = next(self._items)
            self._waiting[content_hash(item)] = item
        return self._waiting[name]


def trace_stream(iteration: TracedIterator, replayed: list[list[Any]] | None) -> None:
    """Note the samples of a pass over a stream, and hand out those to be replayed, if any."""
    batches, asked = iteration._batches, iteration.trace.workers_of(iteration.dataset)
    workers = StreamWorkers(iteration.loader, asked, batches._base_seed) if asked.number else None
    fetcher = batches._dataset_fetcher
    if replayed is not None:
        items = workers.items() if workers else fetcher.dataset_iter
        fetcher.dataset_iter = _noting_items(Pool(items, replayed), iteration)
        batches._sampler_iter = iter(replayed)
        return
    for source in workers.fetchers() if workers else [fetcher]:
        source.dataset_iter = _noting_items(source.dataset_iter, iteration)
    if workers:
        batches._dataset_fetcher = workers


def _noting_items(items: Iterator[Any], iteration: TracedIterator) -> Iterator[Any]:
    for item in items:
        iteration._samples.append(content_hash(item))
        yield item
