"""The blocks of a row's draw: numbers that do not depend on how far a batch is padded.

The mask of an attention has one number for each pair of places in a text, and a text is as long as the longest of its
batch: other ranks, and one process, have other lengths. What is drawn for one place must be the same for all lengths.
Numbers fill a tensor with its last dimension first, so that this holds for the first dimension of a row, whatever its
length. The others are drawn in blocks of fixed lengths, each from its own seed, of which a tensor has the beginning.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product

import torch

FIRST_BLOCK = 32  # places; the further blocks begin at 32, 64, 128, ..., and end where the next begins
Block = tuple[tuple[int, int, int], ...]  # in each dimension: first place, end, and the length that is drawn


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
