"""The current batch: the samples whose rows are computed with."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from itertools import combinations
from typing import Any

import torch

from retrofit.distributed.ddp.gradients import in_backward
from retrofit.verify.trace.randomness.draws import place_in_script
from retrofit.verify.trace.randomness.streams import drawing, in_main_thread, stream_key

from .entries import tensors_in, tensors_of_samples
from .parts import Held, Mixing, held_by, joined, merges_rows, paired_by_part, pairs_rows, picked, places_of

Run = Callable[[tuple, dict], Any]
Place = tuple[int, int]  # of a batch: the number of its pass, and its own in it
JOINS = ("cat", "stack")
MOST_AHEAD = 100  # batches that a script draws before it computes with the first
MOST_DRAWS = 10_000  # that may be repeated
MOST_COUNTED = 1000  # batches whose draws are remembered


class Row(int):
    """The seed of a row, and the batch that it is in.

    A stream may repeat a sample, and a sampler with replacement too: two batches that are drawn ahead have the same
    seed then, on one process, where each of two ranks may have it once.
    """

    batch: int
    together: int  # rows in that batch


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
            row.batch, row.together = self._num_batches, len(seeds)
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
        while len(self._of_batch) > MOST_COUNTED:
            del self._of_batch[next(iter(self._of_batch))]
        return of_batch


class BatchRows:
    """The seeds of the samples in the batch in hand, one per row.

    A script may draw batches that it never computes with (a look at the first one), and several before it computes
    with the first (a prefetcher, all micro batches of a step). So it is not the order that tells which batch is in
    hand: an operator that reads a tensor of a batch, or one that was made from it outside of a model, takes that batch
    in hand. Within a forward pass the first such operator decides. Batches without tensors wait in a queue, and each
    forward pass takes the next; with an empty queue it is still the same batch (a second model, a second forward).
    A slice of a batch has the rows of that part.
    """

    def __init__(self) -> None:
        self.is_loading: Callable[[], bool] = bool  # a sample is being made: no batch is in hand meanwhile
        self.on_mixed: Callable[[Mixing], None] = lambda mixing: None  # samples are trained on that are mixed
        self._current: list[int] = []
        self._queue: deque[list[int]] = deque()
        self._batch_of: dict[int, Held] = {}  # by storage
        self._num_draws = DrawCounts()
        self._keys: dict[tuple[int, tuple[int, ...]], list[int]] = {}
        self._in_forward = self._is_decided = False
        self._is_own = self._is_spent = False
        self._parts_of: dict[tuple[int, ...], list[list[int]]] = {}  # by the seeds, of the last batches
        self._given: deque[tuple[Place, list[int]]] = deque(maxlen=MOST_AHEAD)  # the last batches of loaders

    def __call__(self) -> list[int]:
        return [] if self.is_loading() else self._current

    def add(
        self,
        batch: Any,
        seeds: list[int],
        is_own: bool = False,
        parts: list[list[int]] | None = None,
        place: Place | None = None,
    ) -> None:
        """A batch is given to the script, or (`is_own`) drawn by it: until another is read, it is the one in hand.

        `parts`: the rows of each rank in a batch that is joined of theirs. `place`: which batch of which pass it is.
        """
        if place is not None:
            self._given.appendleft((place, seeds))
        with drawing:
            seeds = self._num_draws.rows_of(seeds)
            self._add(batch, seeds, is_own, parts)

    def _add(self, batch: Any, seeds: list[int], is_own: bool, parts: list[list[int]] | None) -> None:
        if parts:
            self._parts_of[tuple(seeds)] = parts
            while len(self._parts_of) > MOST_AHEAD:
                del self._parts_of[next(iter(self._parts_of))]
        self._is_own, self._is_spent = is_own, False
        self._batch_of = {key: held for key, held in self._batch_of.items() if not held.storage.expired()}
        tensors = list(tensors_of_samples(batch, len(seeds)))
        if not self._queue and in_main_thread():
            self._current = seeds  # noise may be drawn before the forward pass
        if not any([self._note(tensor, seeds, is_of_one=is_of_one) for tensor, is_of_one in tensors]):
            self._queue.append(seeds)

    def hold(self, seeds: list[int], parts: list[list[int]] | None) -> None:
        """A batch is being made of its samples: it is in hand until that is done."""
        self._current = self._num_draws.rows_of(seeds)
        if parts:
            self._parts_of[tuple(seeds)] = parts

    def parts(self) -> list[list[int]]:
        """Return the rows of the batch in hand, those of each rank apart."""
        return self._parts_of.get(tuple(self._current)) or [list(range(len(self._current)))]

    def part(self) -> tuple[Place, list[int]] | None:
        """Return of which batch the rows in hand are a part, and their places in it; None for a whole batch."""
        for place, seeds in self._given if self._current else ():
            if len(seeds) <= len(self._current):
                if seeds == self._current:
                    return None
                continue
            rows = places_of(self._current, seeds)
            if rows is not None:
                return place, rows
        return None

    def keys(self) -> list[int]:
        """Return for each row in hand how many draws there were for it, this one not counted.

        Activation checkpointing draws once more from the same state of torch's stream, and gets the same numbers.
        """
        place = (stream_key(), tuple(self._current))
        if place not in self._keys:
            if len(self._keys) >= MOST_DRAWS:
                self._keys.clear()
            self._keys[place] = self._num_draws.add(self._current)
        return self._keys[place]

    def leave(self) -> None:
        """The script asks for the next batch, or is done: nothing is in hand. Batches drawn ahead keep waiting."""
        self._current = []

    def on_backward(self) -> None:
        """Gradients were computed, and so the batch was used."""
        self._is_spent = self._is_own

    def may_pick(self) -> bool:
        """Return whether numbers of samples that are drawn now may be those of the next batch of the script's own."""
        return self._is_spent and not self._in_forward

    def in_model(self) -> bool:
        """Return whether a forward pass is being run."""
        return self._in_forward

    def on_forward(self, begins: bool) -> None:
        """A forward pass of a model begins, or is over."""
        self._in_forward, self._is_decided = begins, False
        if not begins and torch.is_grad_enabled():
            self._is_spent = self._is_own
        if begins and self._queue and not in_backward():
            self._current = self._queue.popleft()

    def on_inputs(self, inputs: Any) -> None:
        """A forward pass is given these: the batch that they were made of is in hand, whatever is drawn first."""
        known = [] if in_backward() else list(self._held(tuple(tensors_in(inputs))))
        if known:
            tensor, held = known[0]
            self._current, self._is_decided = held.rows_in(tensor), True
            if torch.is_grad_enabled():
                self._report_mixed(held for _, held in known)

    def following(self, func: Any, run: Run) -> Run:
        """Return how to run an operator and see which batch it reads."""
        name = func._schema.name.split("::")[1]

        def follow(args: tuple, kwargs: dict) -> Any:
            is_decided = self._in_forward and self._is_decided
            if not self._batch_of or is_decided or in_backward() or self.is_loading():
                return run(args, kwargs)
            seeds = self._read(name, args)
            if seeds is None:
                return run(args, kwargs)
            self._current, self._is_decided = seeds, True
            parts = self._parts_of.get(tuple(seeds), [])
            if len(parts) > 1 and _pairs_inputs(name, args, seeds):
                result, own = paired_by_part(run, args, kwargs, parts, seeds)
            else:
                result, own = run(args, kwargs), picked(name, args, seeds)
            mixed = self._mixing(func, name, args)
            if not self._in_forward:
                is_merged, is_of_one = merges_rows(func, args, kwargs), self._is_of_one(name, args)
                for tensor in tensors_in(result):
                    self._note(tensor, own, name == "copy_", is_merged, is_of_one, mixed)
            return result

        return follow

    def _read(self, name: str, args: tuple) -> list[int] | None:
        """Return the rows of the first tensor among the arguments that is known to be made from a batch."""
        known = list(self._known(args[1:] if name == "copy_" else args))
        if name == "cat" and len(known) == len(args[0]):
            return joined(known, args[1] if len(args) > 1 else 0) or known[0][1]
        return known[0][1] if known else None

    def _mixing(self, func: Any, name: str, args: tuple) -> Mixing | None:
        """Return where the samples that an operator reads are mixed: by it (`x[3] * 0.9 + x[5] * 0.1`), or before.

        What is computed from mixed data and weights is trained on: that is reported.
        """
        known = list(self._held(args[1:] if name == "copy_" else args))
        before = next((held.mixed for _, held in known if held.mixed), None)
        if before is not None and torch.is_grad_enabled() and any(one.requires_grad for one in tensors_in(args)):
            self._report_mixed(held for _, held in known)
        if before is not None or torch.Tag.pointwise not in func.tags:
            return before
        rows = [held.samples_in(tensor) for tensor, held in known if not tensor.requires_grad]
        pair = next((pair for pair in combinations(rows, 2) if _are_mixed(*pair)), None)
        return None if pair is None else Mixing(name, len(pair[0]), place_in_script())

    def _is_of_one(self, name: str, args: tuple) -> bool:
        """Return whether what an operator makes is of one sample, as all is that it reads; joined are those of many."""
        return name not in JOINS and all(held.is_of_one for _, held in self._held(args))

    def _report_mixed(self, known: Iterator[Held]) -> None:
        for held in known:
            if held.mixed is not None:
                self.on_mixed(held.mixed)

    def _known(self, args: tuple) -> Iterator[tuple[torch.Tensor, list[int]]]:
        return ((tensor, held.rows_in(tensor)) for tensor, held in self._held(args))

    def _held(self, args: tuple) -> Iterator[tuple[torch.Tensor, Held]]:
        for argument in args:
            for tensor in argument if isinstance(argument, (list, tuple)) else (argument,):
                held = self._batch_of.get(_storage_of(tensor)) if isinstance(tensor, torch.Tensor) else None
                if held is not None and not held.storage.expired():
                    yield tensor, held

    def holds(self, tensor: torch.Tensor) -> bool:
        """Return whether a tensor is known to be made from the batch in hand."""
        rows = next((rows for _, rows in self._known((tensor,))), [])
        return bool(rows and self._current) and _batch_of(rows) == _batch_of(self._current)

    def _note(
        self,
        tensor: torch.Tensor,
        seeds: list[int],
        is_filled: bool = True,
        is_merged: bool = False,
        is_of_one: bool = False,
        mixed: Mixing | None = None,
    ) -> bool:
        """Remember that a tensor belongs to a batch. Returns whether it has memory by which it can be known again.

        A view of memory that is known (not `is_filled`) tells nothing new, but where its samples are `mixed`. The same
        holds for a part that is filled with samples of its batch: `x[i] = ...`. `is_merged`: none of what it holds is
        of one row. `is_of_one`: it is of one sample, so that its rows are none of the batch.
        """
        key = _storage_of(tensor)
        if key == 0:
            return False
        with drawing:
            known = self._batch_of.get(key)
            if known is None or known.storage.expired() or (is_filled and not _is_part(tensor, seeds, known)):
                held = held_by(tensor, seeds)
                stride = 0 if is_merged or is_of_one else held.stride
                self._batch_of[key] = held._replace(mixed=mixed, stride=stride, is_of_one=is_of_one)
            elif mixed is not None:
                self._batch_of[key] = known._replace(mixed=mixed)
        return True


def _batch_of(rows: Sequence[int]) -> int:
    """Return the number of the batch that the first of the rows is in."""
    return getattr(rows[0], "batch", 0)


def _are_mixed(some: Sequence[int], others: Sequence[int]) -> bool:
    """Return whether what is computed from the data of some samples and of as many others mixes these.

    All of them are of one batch, which has no other part: what is carried from one batch to the next is on each rank
    what it is on one process, if each has the same place. Single samples are taken out of batches of several.
    """
    if not some or len(some) != len(others) or not set(some).isdisjoint(others):
        return False
    if len(some) == 1:
        return all(getattr(row, "together", 1) > 1 for row in (*some, *others))
    return _batch_of(some) == _batch_of(others)


def _is_part(tensor: torch.Tensor, seeds: list[int], known: Held) -> bool:
    """Return whether a tensor is a part of memory that holds the samples with these seeds."""
    is_whole = tensor.numel() * tensor.element_size() >= tensor.untyped_storage().nbytes()
    return not is_whole and set(seeds) <= set(known.seeds)


def _pairs_inputs(name: str, args: tuple, seeds: list[int]) -> bool:
    """Return whether rows of data are paired. Features are paired in a loss that compares the whole batch."""
    tensor = args[0] if args else None
    if not pairs_rows(name, args) or not isinstance(tensor, torch.Tensor) or tensor.requires_grad:
        return False
    return bool(tensor.dim()) and tensor.shape[0] == len(seeds)


def _storage_of(tensor: torch.Tensor) -> int:
    """Return what a tensor shares with its views alone; 0 for one without memory of its own (a sharded one)."""
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.layout != torch.strided:
        return 0
    return int(tensor.untyped_storage()._cdata)
