"""The current batch: the samples whose rows the running forward pass computes."""

from __future__ import annotations

from collections import deque


class BatchRows:
    """The seeds of the samples in the current batch, one per row.

    A script can draw several batches ahead (a prefetcher, all micro batches of a step) before it computes with the
    first: batches wait in a queue, and each forward pass takes the next; with an empty queue it is still the same
    batch (a second model, a second forward).
    """

    def __init__(self) -> None:
        self._waiting: deque[list[int]] = deque()
        self._current: list[int] = []

    def __call__(self) -> list[int]:
        return self._current

    def add(self, seeds: list[int]) -> None:
        if not self._waiting:
            self._current = seeds  # noise may be drawn before the forward pass
        self._waiting.append(seeds)

    def leave(self) -> None:
        """The script asks for the next batch, or is done: nothing is in hand. Batches drawn ahead keep waiting."""
        self._current = []

    def on_forward(self) -> None:
        if self._waiting:
            self._current = self._waiting.popleft()
