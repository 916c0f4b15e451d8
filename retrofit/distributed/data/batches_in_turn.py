"""Batches that something other than a DataLoader gives, a class or a generator: each rank takes its own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import count
from numbers import Number
from typing import Any

import torch

from ..collectives import gather_objects
from ..failure.watchdog import begin_step
from ..process.options import get_option
from ..process.process_group import get_rank, get_world_size
from .batch import Batch, DrawnAhead, rows_of, using
from .random_state import drawn_apart, get_rng_state, mix_seed, set_rng_state, split_random_streams
from .sharding import require_main_thread, whole_batch
from .streams import digest_of

MOST_PARTS = 1000  # of a batch that are looked at


class BatchesInTurn:
    """This rank's batches of an iterable that gives every rank the same ones: each `world_size`-th, from its rank on.

    All ranks draw all batches with the same random numbers, others in each pass. Of the script's own streams torch's is
    this rank's from then on, those of python and numpy stay common: what a script shuffles between the passes has one
    order everywhere. A rank that has no more repeats its last one, which counts nothing, until no rank has any. With
    `--batch global` each rank takes its rows of every batch, or a `whole_batch` with `keeps`, and where parts differ in
    their number of rows. Attributes are those of the iterable. Collective at every batch, in the thread that trains.
    Raises RuntimeError where the ranks draw different batches, ValueError where there are fewer batches than ranks.
    """

    def __init__(self, batches: Iterable[Any], seed: int, keeps: bool = False) -> None:
        self.__dict__.update(_seed=seed, _keeps=keeps, _passes=0, _started=False, _running=None)
        self.__dict__.update(_batches=batches, _ahead=DrawnAhead(), _full=set())

    def __iter__(self) -> Iterator[Any]:
        require_main_thread(self._batches)
        if not self._started:
            _split_torch_stream(self._seed)
        self.__dict__.update(_started=True, _passes=self._passes + 1)
        self._ahead.begin()
        yield from self._split() if get_option("batch") == "global" else self._whole()
        self._ahead.end()

    def __next__(self) -> Any:
        if self._running is None:
            self.__dict__["_running"] = iter(self)
        try:
            return next(self._running)
        except StopIteration:
            self.__dict__["_running"] = None
            raise

    def __len__(self) -> int:
        length = len(self._batches)  # type: ignore[arg-type]
        return length if get_option("batch") == "global" else -(-length // get_world_size())

    def __getitem__(self, key: Any) -> Any:
        if isinstance(self._batches, (list, tuple, torch.Tensor)):
            raise TypeError(
                "rd.distribute_loader was given samples, of which something takes a part by an index; give it what "
                "yields the batches: for batch in rd.distribute_loader(batches(samples))"
            )
        return self._batches[key]  # type: ignore[index]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # while it is copied
            raise AttributeError(name)
        return getattr(self._batches, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._batches, name, value)

    def set_epoch(self, epoch: int) -> None:
        """Choose the random numbers of the next pass."""
        self.__dict__["_passes"] = epoch

    def _drawn(self, number: int) -> Iterator[Any]:
        return drawn_apart(self._batches, mix_seed(self._seed, self._passes), number=number)

    def _whole(self) -> Iterator[Any]:
        """Yield each `world_size`-th batch."""
        rank, world_size = get_rank(), get_world_size()
        drawn, own, last = self._drawn(world_size), None, None
        for number in count(1):
            begin_step(f"batch {number} of pass {self._passes}")
            turn = [batch for _, batch in zip(range(world_size), drawn)]
            self._require_same(turn, is_first=number == 1)
            if not turn:
                self._full.discard(last)
                return
            own = turn[rank] if rank < len(turn) else own
            axis, last = self._axis(turn), next(_shapes_of(turn[-1]), (1,))
            sizes = [_length_of(batch, axis) for batch in turn] + [0] * (world_size - len(turn))
            weight = sizes[rank] * world_size / sum(sizes)
            with using(Batch(_length_of(own, axis), max(sizes), weight, tuple(sizes), is_in_turn=False), self._ahead):
                yield own

    def _split(self) -> Iterator[Any]:
        """Yield each `world_size`-th row of every batch, or all of them."""
        rank, world_size, full = get_rank(), get_world_size(), 0
        for number, batch in enumerate(self._drawn(1), 1):
            begin_step(f"batch {number} of pass {self._passes}")
            self._require_same([batch] * world_size, is_first=number == 1)
            total = 0 if self._keeps else _common_length(batch)
            if total == 0:
                with using(whole_batch(_length_of(batch, 0)), self._ahead):
                    yield batch
                continue
            of_ranks = tuple(len(range(part, total, world_size)) for part in range(world_size))
            full = max(full, of_ranks[0])
            rows = slice(rank, None, world_size) if of_ranks[rank] else slice(rank % total, rank % total + 1)
            own = Batch(max(of_ranks[rank], 1), full, of_ranks[rank] * world_size / total, of_ranks)
            with using(own, self._ahead):
                yield _rows_taken(batch, rows)

    def _axis(self, turn: list[Any]) -> int:
        """Return the dimension of the samples: the second where batches before the last differ in the first alone."""
        shapes = [next(_shapes_of(batch), (1,)) for batch in turn]
        self._full.update(shapes[:-1])
        firsts, seconds = {shape[0] for shape in self._full}, {shape[1:2] for shape in self._full}
        axis = int(len(firsts) > 1 and len(seconds) == 1 and seconds != {()})
        self._full.add(shapes[-1])  # it is the last of a pass, and may be shorter, where no other turn follows
        return axis

    def _require_same(self, turn: list[Any], is_first: bool) -> None:
        """Raise where the ranks have drawn different batches, or another number of them. Collective: every rank."""
        found = gather_objects((len(turn), digest_of([*_parts_of(turn[0])]) if turn and is_first else ""))
        name = type(self._batches).__name__
        if len(set(found)) > 1:
            raise RuntimeError(
                f"the ranks draw different batches from {name}, so some would be trained on twice and others not at "
                "all; it must draw its random numbers from torch, numpy or random while it gives batches, or be "
                "shuffled in the same way on every rank: rd.data.draw_together(random.shuffle, samples)"
            )
        if is_first and turn and len(turn) < get_world_size():
            raise ValueError(
                f"{name} gives {len(turn)} batches, fewer than there are ranks ({get_world_size()}), and each rank "
                "takes batches of its own; use fewer processes, or --batch global, which splits every batch"
            )


def _split_torch_stream(seed: int) -> None:
    """Let this rank draw others of torch's random numbers. Those of python and numpy stay: scripts shuffle by them."""
    common = get_rng_state()
    split_random_streams(seed)
    set_rng_state(common | {name: state for name, state in get_rng_state().items() if name in ("torch", "cuda")})


def _parts_of(batch: Any) -> Iterator[Any]:
    """Yield what a batch consists of: tensors, arrays, texts and numbers in containers and in objects of the script."""
    waiting, seen = [batch], 0
    while waiting and seen < MOST_PARTS:
        part, seen = waiting.pop(0), seen + 1
        if isinstance(part, Mapping):
            waiting += part.values()
        elif isinstance(part, (list, tuple)):
            waiting += part
        elif isinstance(part, (int, float, str, bytes)) or hasattr(part, "__array__"):
            yield part
        elif hasattr(part, "__dict__") and not isinstance(part, type) and not callable(part):
            waiting += [
                value for value in vars(part).values() if isinstance(value, (torch.Tensor, list, tuple, Mapping))
            ]


def _shapes_of(batch: Any) -> Iterator[tuple[int, ...]]:
    """Yield the shapes of the tensors and arrays in a batch."""
    yield from (tuple(part.shape) for part in _parts_of(batch) if getattr(part, "shape", ()))


def _length_of(batch: Any, axis: int) -> int:
    """Return the number of samples in a batch."""
    for shape in _shapes_of(batch) if not _is_list_of_samples(batch) else ():
        return shape[axis] if len(shape) > axis else shape[0]
    lengths = {len(p) if isinstance(p, (list, tuple)) else -1 for p in (batch if isinstance(batch, tuple) else ())}
    if len(lengths) == 1 and -1 not in lengths:  # lists of inputs and of targets
        return max(*lengths, 1)
    return len(batch) if isinstance(batch, (list, tuple)) else 1


def _is_list_of_samples(batch: Any) -> bool:
    """Return whether a batch is a list with an entry per sample, as more than three tensors of one kind are."""
    parts = batch if isinstance(batch, list) else []
    kinds = {(part.dtype, part.shape[1:]) if hasattr(part, "dtype") else None for part in parts}
    is_known = all(isinstance(part, (Number, str, tuple, Mapping)) for part in parts)
    return bool(parts) and (is_known or (len(parts) > 3 and len(kinds) == 1 and None not in kinds))


def _common_length(batch: Any) -> int:
    """Return the number of rows that all tensors, arrays and lists of a batch have; 0 where it is not clear."""
    if _is_list_of_samples(batch):
        return len(batch)
    parts = batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, (list, tuple)) else [batch]
    numbers = {len(part) if hasattr(part, "__getitem__") and not isinstance(part, str) else 0 for part in parts}
    firsts = {(*getattr(part, "shape", ()), 0)[0] for part in _parts_of(batch)}  # of ([moving, fixed], [fixed]): no row
    are_lists = any(isinstance(part, (list, tuple)) and not _is_list_of_samples(part) for part in parts)
    is_unclear = are_lists and len(firsts) == 1 and firsts != {0}
    return 0 if len(numbers) != 1 or is_unclear or {type(batch), *map(type, parts)} == {list} else numbers.pop()


def _rows_taken(batch: Any, rows: slice) -> Any:
    """Return rows of all parts of a batch, in a container of the same kind."""
    if _is_list_of_samples(batch) or not isinstance(batch, (Mapping, list, tuple)):
        return rows_of(batch, rows)
    if isinstance(batch, Mapping):
        return type(batch)({name: rows_of(part, rows) for name, part in batch.items()})  # type: ignore[call-arg]
    parts = [rows_of(part, rows) for part in batch]
    return type(batch)(*parts) if hasattr(batch, "_fields") else type(batch)(parts)
