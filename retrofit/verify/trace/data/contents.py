"""The content of samples: hashes by which ranks and one process are compared."""

from __future__ import annotations

import functools
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from retrofit.verify.trace.computation.fingerprint import content_hash
from retrofit.verify.trace.computation.operators import untraced
from retrofit.verify.trace.randomness.generators import is_generator, reseed, restore, state_of
from retrofit.verify.trace.randomness.streams import Streams

from .datasets import probe_indices

HASHED_SAMPLES = 200  # of each dataset and rank
MOST_PARTS = 200  # of a dataset that are looked at


class Contents:
    """Hashes samples of datasets whose content depends on the index and on the process's random streams alone."""

    def __init__(self, streams: Streams, num_ranks: int) -> None:
        self._streams = streams
        self._most = HASHED_SAMPLES * num_ranks
        self._num_hashed: Counter[str] = Counter()
        # Keys of datasets that draw from generators of their own, and which of those that are found these are.
        self._drawing: dict[str, list[int]] = {}

    def probe(self, key: str, dataset: Any) -> dict[str, str] | None:
        """Return the content of a few samples on streams of their own, without a trace in any stream."""
        if key in self._drawing:
            return None
        self._make_generators(dataset)
        with _restored(dataset) as draws:
            load = functools.partial(self._streams.for_sample, watch=False)
            found = {
                str(i): content_hash(load(i, functools.partial(dataset.__getitem__, i))[0])
                for i in probe_indices(dataset)
            }
            drawn = draws()
            if drawn:
                self._drawing[key] = drawn
                return None
        return found

    def _make_generators(self, dataset: Any) -> None:
        """Load a sample on the process's own streams: a dataset that makes its generator with its first one has it now.

        The streams of a sample would give such a generator the same seed on all ranks.
        """
        with _restored(dataset), untraced():
            for index in probe_indices(dataset)[:1]:
                self._streams.restored_after(functools.partial(dataset.__getitem__, index))

    def state(self, key: str, dataset: Any) -> str | None:
        """Return a hash of the generators that a dataset draws from; None where it has none of its own."""
        if key not in self._drawing:
            return None
        states = [repr(state_of(generator)) for generator in _generators_of(dataset)]
        return content_hash([states[number] for number in self._drawing[key] if number < len(states)])

    @contextmanager
    def seeded(self, key: str, dataset: Any, seed: int) -> Iterator[None]:
        """Let the generators of a dataset depend on the sample that the block loads."""
        if key not in self._drawing:
            yield
            return
        with _restored(dataset):
            for generator in _generators_of(dataset):
                reseed(generator, seed)
            yield

    def of_sample(self, key: str, item: Any) -> str | None:
        """Return the hash of a sample that is loaded; None where enough were, or content tells nothing."""
        if key in self._drawing or self._num_hashed[key] >= self._most:
            return None
        self._num_hashed[key] += 1
        with untraced():
            return content_hash(item)


@contextmanager
def _restored(dataset: Any) -> Iterator[Any]:
    """Put the generators of a dataset back afterwards; what it gives tells which of them have been drawn from."""
    generators = list(_generators_of(dataset))
    before = [state_of(generator) for generator in generators]
    try:
        pairs = list(zip(generators, before))
        yield lambda: [number for number, (one, state) in enumerate(pairs) if repr(state_of(one)) != repr(state)]
    finally:
        for generator, state in zip(generators, before):
            restore(generator, state)


def _generators_of(dataset: Any) -> Iterator[Any]:
    """Yield the random generators that a dataset holds, in its parts too, and those of its module."""
    waiting: list[Any] = [dataset]
    seen: set[int] = set()
    waiting += [
        value for value in vars(sys.modules.get(type(dataset).__module__, object)).values() if is_generator(value)
    ]
    while waiting and len(seen) < MOST_PARTS:
        part = waiting.pop(0)
        if id(part) in seen:
            continue
        seen.add(id(part))
        if is_generator(part):
            yield part
        elif isinstance(part, (list, tuple)):
            waiting += part[:10]
        elif not isinstance(part, (type, torch.Tensor)) and hasattr(part, "__dict__"):
            waiting += vars(part).values()
