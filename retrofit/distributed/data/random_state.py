"""Random streams of python, numpy and torch: seed them, keep the ranks' streams apart, save and restore them."""

from __future__ import annotations

import hashlib
import random
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import chain, islice
from typing import Any

import torch
from torch.utils.data import get_worker_info

from ..collectives import broadcast_object
from ..process.process_group import get_rank, is_distributed

__all__ = [
    "get_rng_state",
    "seed_everything",
    "set_rng_state",
    "share_random_state",
    "split_random_streams",
]


def seed_everything(seed: int) -> None:
    """Seed python, numpy (if it is loaded) and torch on all devices, the same on every rank.

    Use it before what all ranks must agree on (a random split, the initial weights), then `split_random_streams`.
    """
    random.seed(seed)
    torch.manual_seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed % 2**32)


def split_random_streams(seed: int) -> None:
    """Give every rank but 0 a random stream of its own from here on, for augmentation and dropout.

    DataLoader workers follow: their seeds are drawn from this stream.
    """
    own = mix_seed(seed, get_rank())
    if get_rank() > 0 and torch.initial_seed() != own:  # it has its stream already
        seed_everything(own)


def share_random_state() -> None:
    """Give every rank rank 0's random streams, for a script that sets no seed. Collective: every rank."""
    if is_distributed():
        set_rng_state(broadcast_object(get_rng_state()))


def mix_streams(rank: int) -> None:
    """Seed each stream by what it would draw next and `rank`; those of rank 0 stay as they are."""
    if rank == 0:
        return
    random.seed(mix_seed(random.getrandbits(62), rank))
    torch.manual_seed(mix_seed(int(torch.randint(2**62, ())), rank))
    if "numpy" in sys.modules:
        numpy_random = sys.modules["numpy"].random
        numpy_random.seed(mix_seed(int(numpy_random.randint(2**31)), rank) % 2**32)


def mix_seed(*parts: int) -> int:
    """Return a 62-bit seed that depends on every part: nearby inputs give unrelated streams."""
    return int.from_bytes(hashlib.sha256(repr([int(part) for part in parts]).encode()).digest()[:8], "big") >> 2


def get_rng_state() -> dict[str, Any]:
    """Return the state of this process's random streams, in types that `torch.load(weights_only=True)` reads."""
    state: dict[str, Any] = {"python": random.getstate(), "torch": torch.get_rng_state()}
    if "numpy" in sys.modules:
        name, keys, position, has_gauss, cached_gaussian = sys.modules["numpy"].random.get_state()
        state["numpy"] = (name, keys.tolist(), int(position), int(has_gauss), float(cached_gaussian))
    if torch.cuda.is_available() and get_worker_info() is None:  # a worker would take memory of the GPU for it
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def set_rng_state(state: dict[str, Any]) -> None:
    """Put this process's random streams back to a state of `get_rng_state`."""
    version, numbers, cached_gaussian = state["python"]
    random.setstate((version, tuple(numbers), cached_gaussian))
    torch.set_rng_state(state["torch"])
    if "numpy" in state and "numpy" in sys.modules:
        sys.modules["numpy"].random.set_state(tuple(state["numpy"]))
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Run the block with freshly seeded streams and put this process's own streams back after it."""
    before = get_rng_state()
    seed_everything(seed)
    try:
        yield
    finally:
        set_rng_state(before)


def drawn_apart(values: Iterable[Any], seed: int, number: int = 2**16) -> Iterator[Any]:
    """Yield what `values` draws, `number` at a time, from streams that start at `seed` and nothing else draws from."""
    drawing, state = (tuple(v) if isinstance(v, Iterator) else v for v in chain.from_iterable([values])), None
    while True:  # no part of a value, nor iter(values), draws before or later
        with seeded(seed):
            if state is not None:
                set_rng_state(state)
            part, state = list(islice(drawing, number)), get_rng_state()
        yield from part
        if len(part) < number:
            return
