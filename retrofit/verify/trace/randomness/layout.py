"""The rows of the batch in a tensor: their dimension, learnt from reshapes and joins, and the blocks of a row.

The mask of an attention has one number for each pair of places in a text, and a text is as long as the longest of its
batch: other ranks, and one process, have other lengths. What is drawn for one place must be the same for all lengths.
Numbers fill a tensor with its last dimension first, so that this holds for the first dimension of a row, whatever its
length. The others are drawn in blocks of fixed lengths, each from its own seed, of which a tensor has the beginning.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple

import torch

Run = Callable[[tuple, dict], Any]
Block = tuple[tuple[int, int, int], ...]  # in each dimension: first place, end, and the length that is drawn

JOINS = {"cat", "repeat"}
VIEWS = {"view", "_unsafe_view", "reshape", "_reshape_alias"}
FIRST_BLOCK = 32  # places; the further blocks begin at 32, 64, 128, ..., and end where the next begins


class Place(NamedTuple):
    """The rows lie along `dim`, which is (outer, rows, inner): (3 views, rows, 1) after cat([a, b, c])."""

    dim: int
    outer: int
    inner: int

    @property
    def num_entries(self) -> int:
        """Return how many entries along `dim` one row has."""
        return self.outer * self.inner

    def entries_of(self, row: int, num_rows: int, device: torch.device) -> torch.Tensor:
        """Return the entries along `dim` that belong to a row."""
        every = torch.arange(self.num_entries * num_rows, device=device)
        return every.view(self.outer, num_rows, self.inner)[:, row].reshape(-1)


class RowLayout:
    """Remembers which sizes came about by merging the rows with something else, within one batch.

    A shape alone does not tell whether (6, 2, 5) is 3 tokens of 2 rows each, with 2 channels, or 6 tokens of 2
    rows. Where several dimensions have as many entries as the batch has rows, the first is taken for theirs.
    """

    def __init__(self, rows: Callable[[], list[int]]) -> None:
        self._rows = rows
        self._merged: dict[int, tuple[int, int]] = {}  # size: (outer, inner)
        self._learnt_for = 0  # rows

    def clear(self) -> None:
        self._merged.clear()

    def _num_rows(self) -> int:
        """Return the rows of the batch in hand; of a batch with another number of them nothing is learnt so far."""
        num_rows = len(self._rows())
        if num_rows != self._learnt_for:
            self._learnt_for = num_rows
            self.clear()
        return num_rows

    def find(self, shape: Sequence[int]) -> Place | None:
        """Return where the rows are in a tensor of this shape: the first dimension that can be theirs."""
        num_rows = self._num_rows()
        for dim, size in enumerate(shape):
            if size == num_rows:
                return Place(dim, 1, 1)
            if size in self._merged:
                return Place(dim, *self._merged[size])
        if shape and shape[0] and shape[0] % num_rows == 0:
            return Place(0, 1, shape[0] // num_rows)
        return None

    def learning(self, name: str, run: Run) -> Run:
        """Return how to run an operator of JOINS or VIEWS and learn from it."""

        def learn(args: tuple, kwargs: dict) -> Any:
            result = run(args, kwargs)
            num_rows = self._num_rows()
            if num_rows > 1:
                source = args[0][0] if name == "cat" else args[0]
                if name in VIEWS:
                    self._learn_from_view(source.shape, result.shape, num_rows)
                elif source.dim() and result.dim() == source.dim():
                    self._learn_from_join(source.shape[0], result.shape[0], num_rows)
            return result

        return learn

    def _learn_from_join(self, size: int, joined: int, num_rows: int) -> None:
        outer, inner = (1, 1) if size == num_rows else self._merged.get(size, (0, 0))
        if outer and joined > size and joined % size == 0:
            self._merged[joined] = (outer * (joined // size), inner)

    def _learn_from_view(self, source: Sequence[int], result: Sequence[int], num_rows: int) -> None:
        for size, parts in _merges(source, result):
            for number, part in enumerate(parts):
                if part == num_rows or part in self._merged:
                    outer, inner = (1, 1) if part == num_rows else self._merged[part]
                    before, after = math.prod(parts[:number]), math.prod(parts[number + 1 :])
                    self._merged[size] = (before * outer, inner * after)
                    break


def _merges(source: Sequence[int], result: Sequence[int]) -> Iterator[tuple[int, list[int]]]:
    """Yield each size of a view that is made of several dimensions (or parts of such) of its source, and these."""
    if 0 in (*source, *result):
        return
    waiting = [size for size in reversed(source) if size != 1]
    for size in result:
        parts, left = [], size
        while left > 1 and waiting:
            part = waiting.pop()
            if left % part == 0:
                parts.append(part)
                left //= part
            elif part % left == 0:
                parts.append(left)
                waiting.append(part // left)
                left = 1
            else:
                return
        if len(parts) > 1:
            yield size, parts


def blocks_of(shape: Sequence[int]) -> Iterator[Block]:
    """Yield the blocks of a row of this shape."""
    first = next((dim for dim, length in enumerate(shape) if length > 1), 0)
    yield from product(*(_blocks(length) if dim > first else [(0, length, length)] for dim, length in enumerate(shape)))


def _blocks(length: int) -> list[tuple[int, int, int]]:
    if length == 1:
        return [(0, 1, 1)]
    found, start, end = [], 0, FIRST_BLOCK
    while start < length:
        found.append((start, min(end, length), end - start))
        start, end = end, 2 * end
    return found


def cut_to(tensor: torch.Tensor, block: Block, dims: Mapping[int, int], rows: int) -> torch.Tensor:
    """Return a tensor's part of a block in its dimensions (`dims`, by those of the block), filled up to what is drawn.

    In the dimension `rows` it has been cut.
    """
    padding = [0] * (2 * tensor.dim())
    for of_block, dim in dims.items():
        start, stop, drawn = block[of_block]
        if stop > 1:
            tensor = tensor if of_block == rows else tensor.narrow(dim, start, stop - start)
            padding[2 * (tensor.dim() - 1 - dim) + 1] = drawn - (stop - start)
    return torch.nn.functional.pad(tensor, padding).contiguous() if any(padding) else tensor.contiguous()
