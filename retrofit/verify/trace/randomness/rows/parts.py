"""Rows of a batch that a tensor holds: all of them, a slice, or those that an index picks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch.multiprocessing.reductions import StorageWeakRef


class Mixing(NamedTuple):
    """Where the data of samples were mixed with those of others."""

    op: str
    rows: int
    where: str  # "train.py:12 in f"


class Held(NamedTuple):
    """What is known of the memory of a tensor that was made from a batch."""

    storage: StorageWeakRef
    seeds: list[int]  # of the rows
    offset: int  # of the first row
    stride: int  # from one row to the next; 0 where the rows are not the entries of the first dimension
    mixed: Mixing | None = None  # the samples with each other
    is_of_one: bool = False  # of these samples, as the boxes of a picture are

    def rows_in(self, tensor: torch.Tensor) -> list[int]:
        """Return the seeds of the rows in a view of this memory: `x[2:4]` has two. All, where that cannot be told.

        Rows may be the entries of several leading dimensions, in any order of these: so are those of
        `x.reshape(4, -1, 8).transpose(0, 1)`.
        """
        start, inner = divmod(int(tensor.storage_offset()) - self.offset, self.stride) if self.stride else (-1, 0)
        if not 0 <= start < len(self.seeds):
            return self.seeds
        sizes = list(zip(tensor.shape, tensor.stride()))
        leading = next(sizes[:n] for n in range(len(sizes) + 1) if inner + _extent(sizes[n:]) <= self.stride)
        num_rows = math.prod(size for size, _ in leading)
        if num_rows > len(self.seeds) or any(stride % self.stride for _, stride in leading):
            return self.seeds
        places = _places(start, [(size, stride // self.stride) for size, stride in leading])
        is_part = len(set(places)) == len(places) and max(places, default=0) < len(self.seeds)
        return [self.seeds[place] for place in places] if is_part else self.seeds

    def samples_in(self, tensor: torch.Tensor) -> list[int]:
        """Return the seeds of the samples of which each has entries of its own in a view; none for a sum over them."""
        rows = self.rows_in(tensor)
        return rows if self.stride or len(rows) == 1 else []


def held_by(tensor: torch.Tensor, seeds: list[int]) -> Held:
    """Return what is known of the memory of a tensor with these rows."""
    storage = StorageWeakRef(tensor.untyped_storage())
    return Held(storage, seeds, int(tensor.storage_offset()), _stride_of_rows(tensor, len(seeds)))


def _stride_of_rows(tensor: torch.Tensor, num_rows: int) -> int:
    """Return the stride from one row to the next; 0 where rows are not the entries of leading dimensions."""
    if tensor.dim() and tensor.shape[0] == num_rows:
        return tensor.stride(0)
    shape = tuple(tensor.shape) if tensor.is_contiguous() else ()
    last = next((n for n in range(len(shape)) if math.prod(shape[: n + 1]) == num_rows > 1), None)
    return 0 if last is None else tensor.stride(last)


def _places(start: int, sizes: Sequence[tuple[int, int]]) -> list[int]:
    """Return the places of rows that are the entries of dimensions with these sizes and steps, in their order."""
    places = [start]
    for size, step in sizes:
        places = [place + number * step for place in places for number in range(size)]
    return places


def picked(name: str, args: tuple, seeds: list[int]) -> list[int]:
    """Return the rows of what an operator picks from a tensor with these rows, or in which order it puts them."""
    if name == "index" and args[1] and isinstance(args[1][0], torch.Tensor):
        return _at(seeds, args[1][0])
    if name == "index_select" and args[1] == 0:
        return _at(seeds, args[2])
    if name == "flip" and pairs_rows(name, args):
        return seeds[::-1]
    if name == "roll" and pairs_rows(name, args) and seeds:
        shift = args[1][0] % len(seeds)
        return seeds[-shift:] + seeds[:-shift] if shift else seeds
    return seeds


def pairs_rows(name: str, args: tuple) -> bool:
    """Return whether an operator puts rows in another order by their places alone: `x.flip(0)`, `x.roll(1, 0)`.

    A training pairs samples in this way, for mixup.
    """
    dims = args[1] if name == "flip" else args[2] if name == "roll" and len(args) > 2 else []
    return 0 in dims if name == "flip" else list(dims) == [0]


def merges_rows(func: Any, args: tuple, kwargs: dict) -> bool:
    """Return whether an operator takes the first dimension away, as `x.mean(0)` and `x.amax((0, 2))` do.

    The result may have as many features as the batch has samples.
    """
    given = {argument.name: value for argument, value in zip(func._schema.arguments, args)} | kwargs
    dim, values = given.get("dim"), args[0] if args else None
    can_keep = any(argument.name == "keepdim" for argument in func._schema.arguments)
    if not can_keep or given.get("keepdim") or not isinstance(values, torch.Tensor) or not values.dim():
        return False
    return any(one % values.dim() == 0 for one in ([dim] if isinstance(dim, int) else dim or []))


def paired_by_part(
    run: Callable[[tuple, dict], Any], args: tuple, kwargs: dict, parts: Sequence[list[int]], seeds: list[int]
) -> tuple[torch.Tensor, list[int]]:
    """Return what an operator that pairs rows makes of each part of a batch apart, and the rows of that.

    A rank has only its own samples to pair: so has its part of a batch that is joined of those of all ranks.
    """
    whole, order = args[0], torch.arange(len(seeds))
    result = torch.empty_like(whole)
    for part in filter(None, parts):
        own = torch.tensor(part)
        result[own.to(whole.device)] = run((whole[own.to(whole.device)], *args[1:]), kwargs)
        order[own] = run((own, *args[1:]), kwargs)
    return result, [seeds[place] for place in order.tolist()]


def joined(parts: Sequence[tuple[torch.Tensor, list[int]]], dim: int) -> list[int] | None:
    """Return the rows of tensors of other rows one after the other; None for views of the same, or other layouts."""
    is_by_rows = dim == 0 and all(tensor.dim() and tensor.shape[0] == len(rows) for tensor, rows in parts)
    if not is_by_rows or len(parts) < 2 or all(rows == parts[0][1] for _, rows in parts):
        return None
    return [row for _, rows in parts for row in rows]


def places_of(some: list[int], seeds: list[int]) -> list[int] | None:
    """Return the places of some rows among all: one after the other if they are so; None where some are not there."""
    for start in range(len(seeds) - len(some) + 1):
        if seeds[start : start + len(some)] == some:
            return list(range(start, start + len(some)))
    first = {seed: place for place, seed in reversed(list(enumerate(seeds)))}
    return [first[seed] for seed in some] if all(seed in first for seed in some) else None


def _at(seeds: list[int], index: torch.Tensor) -> list[int]:
    if index.dim() != 1 or (index.dtype == torch.bool and index.shape[0] != len(seeds)):
        return seeds
    places: list[Any] = index.nonzero().flatten().tolist() if index.dtype == torch.bool else index.tolist()
    fits = all(-len(seeds) <= place < len(seeds) for place in places)
    return [seeds[place] for place in places] if fits else seeds


def _extent(sizes: Sequence[tuple[int, int]]) -> int:
    """Return how many entries lie between the first and the last one, both counted."""
    return sum((size - 1) * stride for size, stride in sizes if size > 0) + 1
