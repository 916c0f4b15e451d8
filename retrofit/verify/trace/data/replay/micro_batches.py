"""Micro batches: the order of a batch that is joined of the ranks' batches, where a script cuts its batches.

`x[k * size : (k + 1) * size]` of the joined batch is to have the samples that the ranks have together in their k-th
parts: BatchNorm takes its statistics over those. Without an order of its own a joined batch has all samples of rank 0
first, and its first part would be theirs.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

Rows = list[int]  # places in a batch


def joined_order(sizes: Sequence[int], parts: Sequence[Sequence[Rows]], shuffled: bool = False) -> Rows:
    """Return which row a joined batch has at each place, counted over the ranks' batches of these sizes in turn.

    `parts`: of each rank the rows of its micro batches, none where it does not cut its batch. If `shuffled`, the
    samples of each micro batch have another order, always the same.
    """
    own = [_without_repeats(of_rank) for of_rank in parts]
    is_cut = any(own)
    joined = _joined_parts(sizes, own)
    if joined is None:
        whole = _interleaved(sizes) if is_cut else list(range(sum(sizes)))
        return _shuffled(whole) if shuffled else whole
    if shuffled:
        joined = [_shuffled(rows) for rows in joined]
    if all(_is_strided(of_rank) for of_rank in own):
        longest = max(map(len, joined))
        return [rows[place] for place in range(longest) for rows in joined if place < len(rows)]
    return [row for rows in joined for row in rows]


def _joined_parts(sizes: Sequence[int], parts: Sequence[Sequence[Rows]]) -> list[Rows] | None:
    """Return the rows of the micro batches of all ranks, in the order of the batch.

    None where the ranks have other numbers of them, or where they are neither slices nor every k-th sample.
    """
    if len({len(of_rank) for of_rank in parts}) != 1 or not parts[0]:
        return None
    if not all(_covers(of_rank, size) for of_rank, size in zip(parts, sizes)):
        return None
    if not all(_is_strided(of_rank) or _is_sliced(of_rank) for of_rank in parts):
        return None
    starts = [sum(sizes[:rank]) for rank in range(len(sizes))]
    ordered = [sorted(map(sorted, of_rank)) for of_rank in parts]
    return [[start + row for start, rows in zip(starts, turn) for row in rows] for turn in zip(*ordered)]


def _interleaved(sizes: Sequence[int]) -> Rows:
    """Return the rows of the ranks in turn: parts of a permutation are then of all ranks, too.

    What a script draws for a joined batch permutes the rows of each rank at the places that these have in it.
    """
    starts = [sum(sizes[:rank]) for rank in range(len(sizes))]
    places = [((row + 0.5) / size, rank, row) for rank, size in enumerate(sizes) for row in range(size)]
    return [starts[rank] + row for _, rank, row in sorted(places)]


def _shuffled(rows: Rows) -> Rows:
    order = list(range(len(rows)))
    random.Random(len(rows)).shuffle(order)
    return [rows[place] for place in order]


def _without_repeats(parts: Sequence[Rows]) -> list[Rows]:
    """Return the parts without those that a second backward was computed from."""
    return [rows for place, rows in enumerate(parts) if rows not in parts[:place]]


def _covers(parts: Sequence[Rows], size: int) -> bool:
    return sorted(row for rows in parts for row in rows) == list(range(size))


def _is_sliced(parts: Sequence[Rows]) -> bool:
    return all(sorted(rows) == list(range(min(rows), max(rows) + 1)) for rows in parts)


def _is_strided(parts: Sequence[Rows]) -> bool:
    size = sum(map(len, parts))
    return len(parts) < size and all(rows == list(range(start, size, len(parts))) for start, rows in enumerate(parts))
