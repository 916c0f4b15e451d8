"""The recorded events of a run's processes, and the questions that every check asks."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from retrofit.analysis.garbage import no_garbage_search
from retrofit.verify.trace.events import (
    BackwardCall,
    BatchDrawn,
    DrawnAhead,
    EpochOrder,
    Event,
    FileChange,
    IterationEnd,
    IterationStart,
    LateTraining,
    OptimizerStep,
    Place,
    ProcessExit,
    event_of,
)

OneKind = TypeVar("OneKind", bound=Event)

TEXT_SUFFIXES = {".csv", ".json", ".jsonl", ".log", ".tsv", ".txt"}
MOST_TEXT = 100_000  # bytes of a text file that is looked at
LOG_TAIL = 20_000  # characters of a process's output that are kept


@dataclass
class Iteration:
    """One pass of one rank over a data loader."""

    begin: IterationStart
    position: int  # of `begin` among the rank's events
    batches: list[list[Any]] = field(default_factory=list)  # handed to the script, in order
    batch_positions: list[int] = field(default_factory=list)
    order: list[list[Any]] | None = None  # the whole epoch as the sampler gives it
    end: IterationEnd | None = None
    end_position: int | None = None
    train: bool = False

    @property
    def dataset(self) -> str:
        return self.begin.dataset

    @property
    def place(self) -> Place:
        return self.begin.place

    @property
    def length(self) -> int | None:
        """The number of samples in the dataset; None when it does not know."""
        return self.begin.length

    @property
    def exhausted(self) -> bool:
        """Whether the script took every batch, asked for a further one or not (`islice(loader, len(loader))`)."""
        return self.is_ended or (self.order is not None and len(self.batches) == len(self.order) > 0)

    @property
    def is_ended(self) -> bool:
        """Whether the script asked for a further batch when there was none left."""
        return self.end is not None and self.end.is_exhausted

    @property
    def over_position(self) -> int | None:
        """The place of the end of a pass, or of its last batch where the script asked for no further one."""
        return self.end_position if self.is_ended else next(reversed(self.batch_positions), None)

    @property
    def is_whole(self) -> bool:
        """Whether `drawn` is the whole epoch, and not only what a shortened or broken off training took of it."""
        return self.order is not None or self.exhausted

    @cached_property
    def drawn(self) -> list[Any]:
        """The samples of the whole epoch where its order is known, else those that were handed out."""
        return flat(self.batches if self.order is None else self.order)

    @cached_property
    def delivered(self) -> list[Any]:
        """The samples that were handed to the script."""
        return flat(self.batches)

    @cached_property
    def members(self) -> frozenset[Any] | None:
        """The samples of its base dataset that a Subset holds; None for other datasets and later iterations."""
        return None if self.begin.members is None else frozenset(flat([self.begin.members]))


@dataclass
class RankTrace:
    """The events of one process, in the order in which they happened."""

    rank: int
    events: list[Event]

    @cached_property
    def _by_kind(self) -> dict[type[Event], list[Any]]:
        kinds: dict[type[Event], list[Any]] = {}
        for event in self.events:
            kinds.setdefault(type(event), []).append(event)
        return kinds

    def of(self, kind: type[OneKind]) -> list[OneKind]:
        """Return the events of one kind."""
        return self._by_kind.get(kind, [])

    def first(self, kind: type[OneKind]) -> OneKind | None:
        return next(iter(self.of(kind)), None)

    @property
    def steps(self) -> list[OptimizerStep]:
        """The optimizer steps, of all optimizers."""
        return self.of(OptimizerStep)

    @property
    def exit(self) -> ProcessExit | None:
        """How the script ended; None when the process was killed."""
        return next(iter(reversed(self.of(ProcessExit))), None)

    @property
    def ended_well(self) -> bool:
        return self.exit is not None and self.exit.status == 0

    @cached_property
    def step_positions(self) -> list[int]:
        return [position for position, event in enumerate(self.events) if isinstance(event, OptimizerStep)]

    @cached_property
    def iterations(self) -> list[Iteration]:
        """Every pass over a loader, in the order in which they began."""
        found: dict[int, Iteration] = {}
        for position, event in enumerate(self.events):
            if isinstance(event, IterationStart):
                found[event.iteration] = Iteration(event, position)
            elif isinstance(event, (BatchDrawn, EpochOrder, IterationEnd)) and event.iteration in found:
                _add(found[event.iteration], event, position)
        work = [place for place, event in enumerate(self.events) if isinstance(event, (OptimizerStep, BackwardCall))]
        late = {event.iteration for event in self.of(LateTraining)}
        for number, iteration in found.items():
            iteration.train = number in late or _trains(iteration, work)
        return list(found.values())

    @cached_property
    def iterations_by_dataset(self) -> dict[str, list[Iteration]]:
        found: dict[str, list[Iteration]] = {}
        for iteration in self.iterations:
            found.setdefault(iteration.dataset, []).append(iteration)
        return found

    @cached_property
    def training(self) -> list[Iteration]:
        """The iterations that the model was trained on."""
        return [iteration for iteration in self.iterations if iteration.train]

    @cached_property
    def epochs(self) -> list[Iteration]:
        """The training iterations over the dataset that the training began with: one per epoch."""
        return [one for one in self.training if one.dataset == self.training[0].dataset]

    @cached_property
    def step_places(self) -> list[tuple[int, int, int]]:
        """For each optimizer step its epoch, its optimizer and how many-th step of both it is; all from 0."""
        starts = [epoch.position for epoch in self.epochs][1:]
        counts: dict[tuple[int, int], int] = {}
        places = []
        for position, step in zip(self.step_positions, self.steps):
            key = (bisect_left(starts, position), step.optimizer)
            counts[key] = counts.get(key, -1) + 1
            places.append((*key, counts[key]))
        return places

    @cached_property
    def rows_per_step(self) -> list[int]:
        """The number of training samples that were drawn for each optimizer step."""
        sizes = sorted(
            (position, len(batch))
            for iteration in self.training
            for position, batch in zip(iteration.batch_positions, iteration.batches)
        )
        ahead = {event.iteration for event in self.of(DrawnAhead)}
        if any(iteration.begin.iteration in ahead for iteration in self.training):
            return _evenly([size for _, size in sizes], len(self.steps))
        rows, number = [], 0
        for position in self.step_positions:
            start = number
            while number < len(sizes) and sizes[number][0] < position:
                number += 1
            rows.append(sum(size for _, size in sizes[start:number]))
        return rows


@dataclass
class Run:
    """One run of the script, by one or several processes."""

    name: str
    world_size: int
    ranks: list[RankTrace]
    statuses: list[int | None] = field(default_factory=list)  # exit status of each process
    hung: bool = False
    timed_out: bool = False
    stacks: dict[int, str | None] = field(default_factory=dict)  # rank -> "train.py:12 in main", of a hang
    seconds: float = 0.0
    logs: list[str] = field(default_factory=list)  # the last lines that each process printed
    steps_before: int | None = None  # optimizer steps that its checkpoint holds, of a run that continues from one
    left_out: str = ""  # why it says nothing about the script
    texts: dict[str, str] = field(default_factory=dict)  # the text files that rank 0 has written, by path

    @property
    def finished(self) -> bool:
        """Whether every process came to its end with status 0."""
        return not self.hung and not self.timed_out and all(status == 0 for status in self.statuses)

    @property
    def main(self) -> RankTrace:
        """Rank 0."""
        return self.ranks[0]

    @property
    def num_steps(self) -> int:
        """The optimizer steps that all ranks have made."""
        return min((len(rank.steps) for rank in self.ranks), default=0)

    @property
    def num_epochs(self) -> int:
        """The training epochs that all ranks have begun."""
        return min((len(rank.epochs) for rank in self.ranks), default=0)


Runs = Mapping[str, Run]


def load_run(
    name: str,
    folder: str | Path,
    world_size: int,
    *,
    statuses: Sequence[int | None] = (),
    hung: bool = False,
    timed_out: bool = False,
    stacks: Mapping[int, str | None] | None = None,
    seconds: float = 0.0,
    steps_before: int | None = None,
) -> Run:
    """Read what the ranks of a run have left in `folder`; a rank without a trace file has no events.

    Raises ValueError for a trace that is broken anywhere but in its last line (the process was killed in it).
    """
    folder = Path(folder)
    ranks = [RankTrace(rank, read_events(folder / f"rank{rank}.jsonl")) for rank in range(world_size)]
    logs = [_tail(folder / f"rank{rank}.log") for rank in range(world_size)]
    run = Run(name, world_size, ranks, list(statuses), hung, timed_out, dict(stacks or {}), seconds, logs, steps_before)
    run.texts = _texts(folder / "project", ranks[0])
    return run


def read_events(path: str | Path) -> list[Event]:
    """Return the events of a trace file; a torn last line and kinds that are not known are left out.

    Raises ValueError for any other line that is not an event.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return []
    events = []
    with no_garbage_search():
        for number, line in enumerate(lines, 1):
            try:
                events.append(event_of(line))
            except ValueError as error:
                if number < len(lines):
                    where = f"{path}, line {number}"
                    raise ValueError(f"{where} is not an event: {line[:80]!r}; run verify again") from error
    return [event for event in events if event is not None]


def flat(batches: Iterable[Iterable[Any]]) -> list[Any]:
    """Return the samples of all batches; one that is itself a list of indices becomes a tuple."""
    return [_hashable(sample) for batch in batches for sample in batch]


def relative_difference(a: float, b: float, floor: float = 0.0) -> float:
    """Return |a - b| relative to the larger of both and `floor`; two values that are not finite differ or are equal."""
    if a == b or (math.isnan(a) and math.isnan(b)):
        return 0.0
    if not (math.isfinite(a) and math.isfinite(b)):
        return math.inf
    return abs(a - b) / max(abs(a), abs(b), floor)


def _evenly(sizes: Sequence[int], steps: int) -> list[int]:
    """Return the samples of each step where a thread draws batches ahead: each step has as many of the batches."""
    ends = [step * len(sizes) // max(1, steps) for step in range(steps + 1)]
    return [sum(sizes[start:end]) for start, end in zip(ends, ends[1:])]


def _hashable(sample: Any) -> Any:
    return tuple(_hashable(part) for part in sample) if isinstance(sample, list) else sample


def _add(iteration: Iteration, event: BatchDrawn | EpochOrder | IterationEnd, position: int) -> None:
    if isinstance(event, BatchDrawn):
        iteration.batches.append(event.samples)
        iteration.batch_positions.append(position)
    elif isinstance(event, EpochOrder):
        iteration.order = event.batches if event.is_complete else None
    else:
        iteration.end, iteration.end_position = event, position


def _trains(iteration: Iteration, work: Sequence[int]) -> bool:
    """Return whether an iteration is training; of one without an end, whether a backward or a step followed a batch."""
    if not iteration.begin.grad_enabled or not iteration.batch_positions:
        return False
    if iteration.end is not None:
        return iteration.end.is_training
    return bool(work) and work[-1] > iteration.batch_positions[0]


def _texts(project: Path, rank: RankTrace) -> dict[str, str]:
    """Return the small text files in a run's copy of the project that a rank has written, as they are at its end."""
    found: dict[str, str] = {}
    for path in dict.fromkeys(event.path for event in rank.of(FileChange) if event.op in ("write", "rename")):
        file = project / path
        if Path(path).is_absolute():
            continue
        if file.suffix.lower() in TEXT_SUFFIXES and file.is_file() and file.stat().st_size <= MOST_TEXT:
            found[path] = file.read_text(encoding="utf-8", errors="replace")
    return found


def _tail(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")[-LOG_TAIL:]
    except FileNotFoundError:
        return ""
