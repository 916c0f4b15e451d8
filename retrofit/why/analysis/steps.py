"""Steps of a rank, from its marks: how long each part took, and where the rank met the others.

What is between two calls that are watched has no mark of its own. It is named by what comes next: before a backward
pass it is the forward pass and the loss, before an optimizer the work on gradients (clipping), before the next batch
what the script does after a step.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from retrofit.why.instruments.buckets import DONE, FULL
from retrofit.why.instruments.collectives import CALL, ISSUED
from retrofit.why.instruments.loaders import DATA
from retrofit.why.instruments.training import BACKWARD, OPTIMIZER
from retrofit.why.marks import BEGIN, END, MOMENT, Mark
from retrofit.why.recording import QUEUE

LOADING, FORWARD, GRADIENTS, AFTER, EVALUATION = "data", "forward", "gradients", "after the step", "evaluation"
ALL_REDUCE = "gradients' all-reduce"


@dataclass(frozen=True)
class Meeting:
    """A place at which a rank waits for the others. Seconds are on the clock of the machine."""

    kind: str  # ALL_REDUCE, or "collective all_reduce"
    phase: str  # in which it is: FORWARD, BACKWARD, ...
    came: float  # the rank has done what it does by itself
    left: float
    num_bytes: float
    issued: float = 0.0  # when the rank has told the others; `came`, but for a call that is waited for later


@dataclass
class Step:
    """What a rank did from the first batch of a step to that of the next."""

    start: float
    end: float = 0.0
    phases: dict[str, float] = field(default_factory=lambda: defaultdict(float))  # s, without the waits of meetings
    meetings: list[Meeting] = field(default_factory=list)
    samples: float = 0.0
    buckets: list[tuple[float, float, float]] = field(default_factory=list)  # full at, done at, bytes
    spans: list[tuple[str, float, float]] = field(default_factory=list)  # phase, begin, end; in order, with the waits
    queued: float = 0.0  # s for which it waited for a core

    @property
    def seconds(self) -> float:
        return self.end - self.start

    @property
    def has_evaluation(self) -> bool:
        return EVALUATION in self.phases


def steps_of(marks: Sequence[Mark]) -> list[Step]:
    """Return the whole steps of a rank, in order. The first begins with the first batch."""
    found = _Marks(sorted(marks, key=lambda mark: mark.seconds))
    return [_step(found, first, last) for first, last in _spans(found)]


class _Marks:
    """The marks of a rank in order, and what is asked about them again and again, found in one pass.

    A training that prints in every step has hundreds of thousands.
    """

    def __init__(self, marks: list[Mark]) -> None:
        self.all = marks
        self.training = _training_passes(marks)
        self.issued = {mark.value: mark.seconds for mark in marks if mark.name == ISSUED}
        self.done = [mark for mark in marks if mark.name == DONE]
        self.done_before = _counts(marks, DONE)
        self.queue = [mark.value for mark in marks if mark.name == QUEUE]
        self.queue_before = _counts(marks, QUEUE)
        self.labels = self._labels()

    def _labels(self) -> list[str]:
        """Return for each mark what follows it, where nothing is open: it is named by what comes next."""
        evaluates, is_evaluating = [], False
        for mark in self.all:
            if mark.name == OPTIMIZER:
                is_evaluating = False
            elif mark.name.startswith(DATA):
                is_evaluating = mark.name not in self.training
            evaluates.append(is_evaluating)
        labels, after = [AFTER] * len(self.all), ""
        for position in reversed(range(len(self.all))):
            if after.startswith(DATA):
                labels[position] = EVALUATION if evaluates[position] else AFTER
            elif after:
                labels[position] = FORWARD if after == BACKWARD else GRADIENTS
            mark = self.all[position]
            if mark.kind == BEGIN and (mark.name in (BACKWARD, OPTIMIZER) or mark.name.startswith(DATA)):
                after = mark.name
        return labels


def _counts(marks: Sequence[Mark], name: str) -> list[int]:
    """Return how many marks of this name are before each place."""
    return [0, *itertools.accumulate(mark.name == name for mark in marks)]


def _training_passes(marks: Sequence[Mark]) -> set[str]:
    """Return the passes over data in which a backward pass follows a batch."""
    passes, current = set(), ""
    for mark in marks:
        if mark.kind == BEGIN and mark.name.startswith(DATA):
            current = mark.name
        elif mark.kind == BEGIN and mark.name == BACKWARD and current:
            passes.add(current)
    return passes


def _spans(found: _Marks) -> Iterator[tuple[int, int]]:
    """Yield the positions of the first mark of each step and of that of the next."""
    starts, is_made, is_without = [], True, not found.training
    for position, mark in enumerate(found.all):
        if mark.kind == END and mark.name == OPTIMIZER:
            is_made = True
        elif mark.kind == BEGIN and is_made and (mark.name in found.training or (is_without and mark.name == BACKWARD)):
            starts.append(position)
            is_made = False
    yield from zip(starts, starts[1:])


def _step(found: _Marks, first: int, last: int) -> Step:
    marks = found.all
    step = Step(marks[first].seconds, marks[last].seconds)
    open_names: list[str] = []
    before = marks[first].seconds
    for position in range(first, last):
        _enter(step, marks[position], open_names, found.training)
        after = marks[position + 1].seconds
        label = _label(found, position, open_names)
        if step.spans and step.spans[-1][0] == label:
            step.spans[-1] = (label, step.spans[-1][1], after)
        else:
            step.spans.append((label, before, after))
        if not any(name.startswith(CALL) for name in open_names):
            step.phases[label] += after - before
        before = after
    _find_meetings(step, found, first, last)
    _find_queue(step, found, first, last)
    step.phases = {name: seconds for name, seconds in step.phases.items() if seconds > 0}
    return step


def _enter(step: Step, mark: Mark, open_names: list[str], training: set[str]) -> None:
    if mark.kind == BEGIN:
        open_names.append(mark.name)
    elif mark.kind == END:
        if mark.name in open_names:
            open_names.remove(mark.name)
        if mark.name in training and mark.value > 0:
            step.samples += mark.value


def _label(found: _Marks, position: int, open_names: Sequence[str]) -> str:
    if not open_names:
        return found.labels[position]
    name = open_names[-1]
    if not name.startswith(DATA):
        return name
    return LOADING if name in found.training else EVALUATION


def _find_meetings(step: Step, found: _Marks, first: int, last: int) -> None:
    """Find the collective calls, and the ends of backward passes in which buckets were filled."""
    begun: dict[str, tuple[Mark, int]] = {}
    full: list[Mark] = []
    filled: list[Mark] = []
    for position in range(first, last):
        mark = found.all[position]
        if mark.kind == BEGIN:
            begun[mark.name] = (mark, position)
            full = [] if mark.name == BACKWARD else full
        elif mark.kind == MOMENT and mark.name == FULL:
            full.append(mark)
            filled.append(mark)
        elif mark.kind == END and mark.name in begun:
            begin, since = begun.pop(mark.name)
            came = begin.seconds
            if mark.name.startswith(CALL):
                phase = BACKWARD if BACKWARD in begun else found.labels[since]
                told = found.issued.get(mark.value, came) if mark.value else came
                step.meetings.append(Meeting(mark.name, phase, came, mark.seconds, begin.value, told))
            elif mark.name == BACKWARD and full:
                came = full[-1].seconds
                size = sum(one.value for one in full)
                step.meetings.append(Meeting(ALL_REDUCE, BACKWARD, came, mark.seconds, size, came))
                step.phases[BACKWARD] -= mark.seconds - came
                full = []
    done = found.done[found.done_before[first] :]
    for bucket, end in zip(filled, done[: len(filled)]):
        step.buckets.append((bucket.seconds, end.seconds, bucket.value))


def _find_queue(step: Step, found: _Marks, first: int, last: int) -> None:
    before, after = found.queue_before[first], found.queue_before[last]
    if before and after > before:
        step.queued = found.queue[after - 1] - found.queue[before - 1]
