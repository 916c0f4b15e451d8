"""The number of draws that there were for each row of each batch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

MOST_BATCHES = 1000  # whose draws are remembered


class Row(int):
    """The seed of a row, and the batch that it is in.

    A stream may repeat a sample, and a sampler with replacement too: two batches that are drawn ahead have the same
    seed then, on one process, where each of two ranks may have it once.
    """

    batch: int


class DrawCounts:
    """Counts draws by row and batch: those for a sample in one batch say nothing of the same sample in another."""

    def __init__(self) -> None:
        self._num_batches = 0
        self._of_batch: dict[int, Counter[int]] = {}

    def rows_of(self, seeds: Sequence[int]) -> list[int]:
        """Return the rows of a new batch, for which nothing has been drawn."""
        self._num_batches += 1
        rows: list[int] = []
        for seed in seeds:
            row = Row(seed)
            row.batch = self._num_batches
            rows.append(row)
        return rows

    def add(self, rows: Sequence[int]) -> list[int]:
        """Count a draw for these rows. Return for each how many there were before."""
        counts = [self._counts(row) for row in rows]
        before = [of_batch[row] for of_batch, row in zip(counts, rows)]
        for of_batch, row, number in zip(counts, rows, before):
            of_batch[row] = number + 1
        return before

    def _counts(self, row: int) -> Counter[int]:
        of_batch = self._of_batch.setdefault(getattr(row, "batch", 0), Counter())
        while len(self._of_batch) > MOST_BATCHES:
            del self._of_batch[next(iter(self._of_batch))]
        return of_batch
