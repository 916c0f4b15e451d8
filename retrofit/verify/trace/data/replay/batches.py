"""The batches that another run drew, joined over its ranks, for one process to train on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import Any

from retrofit.verify.trace.events import (
    BatchDrawn,
    BatchPart,
    EpochOrder,
    Event,
    IterationEnd,
    IterationStart,
    LateTraining,
    OptimizerStep,
    Place,
    event_of,
)

from .micro_batches import joined_order


class Replay:
    """Batches per training iteration: batch k is what all ranks together had as their batch k.

    With `reorder` the samples of each joined batch, or of each micro batch of it, have another order, always the same.
    """

    def __init__(self, traces: Sequence[str], reorder: bool = False) -> None:
        events = [list(_events(path)) for path in traces]
        per_rank = [_training_batches(own) for own in events]
        cuts = [_batch_parts(own) for own in events]
        self._drawn_orders = _orders(events[0])
        self._evaluated = [_evaluation_batches(own) for own in events]
        self._batches: dict[Place, list[list[Any]]] = {}
        self._sizes: dict[Place, list[list[int]]] = {}
        self._orders: dict[Place, list[list[int]]] = {}
        for place in {place for batches in per_rank for place in batches}:
            ranks = [batches.get(place, []) for batches in per_rank]
            longest = max(len(batches) for batches in ranks)
            self._sizes[place] = [[len(batches[k]) for batches in ranks if k < len(batches)] for k in range(longest)]
            self._orders[place] = [
                joined_order(
                    self._sizes[place][k],
                    [cut.get((place, k), []) for cut, batches in zip(cuts, ranks) if k < len(batches)],
                    reorder,
                )
                for k in range(longest)
            ]
            self._batches[place] = [
                [sample for batches in ranks if k < len(batches) for sample in batches[k]] for k in range(longest)
            ]

    def parts(self, place: Place, number: int) -> list[list[int]]:
        """Return the rows of each rank in a joined batch of a training iteration; empty for one that is not known."""
        if number >= len(self._sizes.get(place, ())):
            return []
        order = self._orders[place][number]
        rows = iter(sorted(range(len(order)), key=order.__getitem__))  # where each one came to be
        return [[next(rows) for _ in range(size)] for size in self._sizes[place][number]]

    def evaluated(self, place: Place) -> list[list[Any]]:
        """Return the batches of an evaluation in the order in which one process would have them; empty without any."""
        ranks = [batches[place] for batches in self._evaluated if place in batches]
        if not ranks or all(batches == ranks[0] for batches in ranks):
            return ranks[0] if ranks else []
        return [batch for turn in zip_longest(*ranks) for batch in turn if batch is not None]

    def draws_no_order(self, place: Place) -> bool:
        """Return whether rank 0's sampler made its order in this pass without the process's own random streams."""
        return self._drawn_orders.get(place) is False

    def batches(self, place: Place) -> list[list[Any]] | None:
        """Return the joined batches of a training iteration; None where the other run did not train."""
        joined = self._batches.get(place)
        if joined is None:
            return None
        return [[batch[i] for i in order] for batch, order in zip(joined, self._orders[place])]

    def batches_of_epoch(self, dataset: str, epoch: int) -> list[list[Any]] | None:
        """Return those of the training iteration of an epoch, whatever iterations over the same data came before it."""
        places = [place for place in self._batches if place[:2] == (dataset, epoch)]
        return self.batches(places[0]) if len(places) == 1 else None


def _orders(events: Sequence[Event]) -> dict[Place, bool]:
    """Return for each pass of a rank over samples with numbers whether its order was drawn from the own streams."""
    places: dict[int, Place] = {}
    found: dict[Place, bool] = {}
    for event in events:
        if isinstance(event, IterationStart):
            places[event.iteration] = event.place
        elif isinstance(event, EpochOrder):
            found[places[event.iteration]] = event.draws
    return found


def _evaluation_batches(events: Sequence[Event]) -> dict[Place, list[list[Any]]]:
    """Return the batches of each pass of a rank that gave all its batches and trained nothing.

    The script need not have asked for one more than there are (`islice(loader, len(loader))`).
    """
    places: dict[int, Place] = {}
    lengths: dict[int, int] = {}
    batches: dict[int, list[list[Any]]] = {}
    found: dict[Place, list[list[Any]]] = {}
    for event in events:
        if isinstance(event, IterationStart):
            places[event.iteration], batches[event.iteration] = event.place, []
        elif isinstance(event, EpochOrder) and event.is_complete:
            lengths[event.iteration] = len(event.batches)
        elif isinstance(event, BatchDrawn):
            batches[event.iteration].append(event.samples)
            if len(batches[event.iteration]) == lengths.get(event.iteration):
                found[places[event.iteration]] = batches[event.iteration]
        elif isinstance(event, IterationEnd) and event.is_exhausted and not event.is_training:
            found[places[event.iteration]] = batches[event.iteration]
        elif isinstance(event, LateTraining) or (isinstance(event, IterationEnd) and event.is_training):
            found.pop(places[event.iteration], None)
    return found


def _events(path: str) -> Iterator[Event]:
    with open(path, encoding="utf-8") as file:
        for line in file:
            try:
                event = event_of(line)
            except ValueError:  # the last line of a killed process
                return
            if event is not None:
                yield event


def _training_batches(events: Sequence[Event]) -> dict[Place, list[list[Any]]]:
    """Return the batches of each training iteration of one rank's trace."""
    places: dict[int, Place] = {}
    batches: dict[int, list[list[Any]]] = {}
    training: set[int] = set()
    since_step: set[int] = set()
    for event in events:
        if isinstance(event, IterationStart):
            places[event.iteration] = event.place
        elif isinstance(event, BatchDrawn):
            batches.setdefault(event.iteration, []).append(event.samples)
            since_step.add(event.iteration)
        elif isinstance(event, OptimizerStep):
            training |= since_step
            since_step = set()
        elif isinstance(event, IterationEnd) and not event.is_training:
            since_step.discard(event.iteration)
        elif isinstance(event, LateTraining):
            training.add(event.iteration)
    return {places[number]: batches[number] for number in training}


def _batch_parts(events: Sequence[Event]) -> dict[tuple[Place, int], list[list[int]]]:
    """Return the rows of the micro batches of each batch of a rank that is cut: none for others."""
    places: dict[int, Place] = {}
    found: dict[tuple[Place, int], list[list[int]]] = {}
    for event in events:
        if isinstance(event, IterationStart):
            places[event.iteration] = event.place
        elif isinstance(event, BatchPart):
            found.setdefault((places[event.iteration], event.number), []).append(event.rows)
    return found
