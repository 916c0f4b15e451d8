"""A link between ranks: the seconds of a collective call, by its bytes and the number of ranks.

A call of M bytes on N ranks takes `hops * alpha + share * M * beta`: alpha seconds for each of its hops, and beta
seconds per byte over the slowest connection (Thakur, Rabenseifner and Gropp 2005, doi 10.1177/1094342005051521):

  all-reduce                    2(N-1) hops, share 2(N-1)/N (a ring); or 2 log2(N) hops, share 2 (a tree)
  all-gather, reduce-scatter    N-1 hops, share (N-1)/N; M is the whole tensor
  broadcast                     log2(N) hops, share 1

Where calls were measured, times for that number of ranks are read between the measured sizes.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

ALL_REDUCE, ALL_REDUCE_16, ALL_GATHER, REDUCE_SCATTER, BROADCAST = (
    "all_reduce", "all_reduce_bf16", "all_gather", "reduce_scatter", "broadcast",
)  # fmt: skip
Table = Sequence[tuple[float, float]]  # bytes, seconds


@dataclass(frozen=True)
class Copies:
    """What DistributedDataParallel does with a byte of gradients besides sending it, in seconds."""

    into_bucket: float = 0.0
    out_of_bucket: float = 0.0
    to_16_bits: float = 0.0  # of 32-bit gradients, division included
    from_16_bits: float = 0.0


@dataclass(frozen=True)
class Overlap:
    """The speed of computation while a call is under way, and of the call while there is computation; 1 is full."""

    computation: float = 1.0
    call: float = 1.0


@dataclass(frozen=True)
class Measured:
    """What strategies add to a step beyond its computation, for `Link.measured_ranks` ranks, in seconds."""

    added: Mapping[str, Table] = field(default_factory=dict)  # DDP: bytes of a model; FSDP: bytes of a layer
    for_tensor: Mapping[str, float] = field(default_factory=dict)  # FSDP: for a tensor of a layer beyond `tensors`
    tensors: int = 0
    update: Mapping[str, float] = field(default_factory=dict)  # of an optimizer for a sharded parameter beyond a whole

    def of(self, strategy: str, num_bytes: float) -> float:
        """Return what a strategy adds for this size, 0 where it was not measured."""
        table = self.added.get(strategy)
        return _between(table, num_bytes) if table else 0.0


@dataclass(frozen=True)
class Link:
    """A link that is assumed (`alpha`, `beta`) or measured (`tables`, for `measured_ranks` ranks)."""

    name: str
    alpha: float  # s per hop
    beta: float  # s per byte
    is_blocking: bool = False  # a sharded model waits for each of its calls, as torch does on the CPU
    has_trees: bool = False
    copies: Copies = field(default_factory=Copies)
    overlap: Overlap = field(default_factory=Overlap)
    measured_ranks: int = 0
    tables: Mapping[str, Table] = field(default_factory=dict)
    measured: Measured = field(default_factory=lambda: Measured())

    def seconds(self, call: str, num_bytes: float, ranks: int) -> float:
        """Return the time of one collective call of `num_bytes` in all, on `ranks` ranks."""
        if ranks < 2:
            return 0.0
        table = self.tables.get(call)
        if table is None:
            return min(self._ideal(*shape, num_bytes) for shape in _shapes(call, ranks, self.has_trees))
        of_all = _between(table, num_bytes)
        if ranks == self.measured_ranks:
            return of_all
        hops, share = _shapes(call, ranks, False)[0]
        measured_hops, measured_share = _shapes(call, self.measured_ranks, False)[0]
        latency = min(of_all, table[0][1])
        return latency * hops / measured_hops + (of_all - latency) * share / measured_share

    def _ideal(self, hops: float, share: float, num_bytes: float) -> float:
        return hops * self.alpha + share * num_bytes * self.beta

    def write(self, path: Path) -> None:
        """Write the link as JSON, for `--link FILE`."""
        path.write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")


def read_link(path: Path) -> Link:
    """Return the link of a file of `Link.write`. Raises ValueError for another content, OSError."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        for name, kind in (("copies", Copies), ("overlap", Overlap), ("measured", Measured)):
            content[name] = kind(**content[name])
        return Link(**content)
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is not a file of `python -m retrofit.plan.link`: {error}") from error


def fitted(all_reduce: Table, ranks: int) -> tuple[float, float]:
    """Return alpha and beta of measured all-reduces: of the smallest, and of the largest beyond it."""
    hops, share = _shapes(ALL_REDUCE, ranks, False)[0]
    (small, least), (large, most) = all_reduce[0], all_reduce[-1]
    return least / hops, max(0.0, most - least) / max(1.0, large - small) / share


def _shapes(call: str, ranks: int, has_trees: bool) -> list[tuple[float, float]]:
    """Return the hops and the share of the bytes of each way to make a call."""
    if call in (ALL_REDUCE, ALL_REDUCE_16):
        ring = (2.0 * (ranks - 1), 2.0 * (ranks - 1) / ranks)
        return [ring, (2.0 * math.log2(ranks), 2.0)] if has_trees else [ring]
    if call == BROADCAST:
        return [(math.ceil(math.log2(ranks)), 1.0)]
    return [(ranks - 1.0, (ranks - 1.0) / ranks)]


def _between(table: Table, num_bytes: float) -> float:
    """Return the time for a size between measured ones; beyond the last one in proportion, below the first its own."""
    sizes = [size for size, _ in table]
    if num_bytes <= sizes[0]:
        return table[0][1]
    if len(table) == 1:
        return table[0][1] * num_bytes / sizes[0]
    place = min(bisect_left(sizes, num_bytes), len(table) - 1)
    (low, least), (high, most) = table[place - 1], table[place]
    return max(least, least + (most - least) * (num_bytes - low) / (high - low))
