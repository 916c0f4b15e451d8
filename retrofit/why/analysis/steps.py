"""Steps of a rank, from its marks: how long each part took, and where the rank met the others.

What is between two calls that are watched has no mark of its own. It is named by what comes next: before a backward
pass it is the forward pass and the loss, before an optimizer the work on gradients (clipping), before the next batch
what the script does after a step.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from retrofit.why.instruments.buckets import DONE, FULL
from retrofit.why.instruments.collectives import CALL
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
    cpu: float = 0.0  # s for which it had one

    @property
    def seconds(self) -> float:
        return self.end - self.start

    @property
    def has_evaluation(self) -> bool:
        return EVALUATION in self.phases


def steps_of(marks: Sequence[Mark]) -> list[Step]:
    """Return the whole steps of a rank, in order. The first begins with the first batch."""
    own = sorted((mark for mark in marks), key=lambda mark: mark.seconds)
    training = _training_passes(own)
    steps: list[Step] = []
    for first, last in _spans(own, training):
        steps.append(_step(own, first, last, training))
    return steps


def _training_passes(marks: Sequence[Mark]) -> set[str]:
    """Return the passes over data in which a backward pass follows a batch."""
    passes, current = set(), ""
    for mark in marks:
        if mark.kind == BEGIN and mark.name.startswith(DATA):
            current = mark.name
        elif mark.kind == BEGIN and mark.name == BACKWARD and current:
            passes.add(current)
    return passes


def _spans(marks: Sequence[Mark], training: set[str]) -> Iterator[tuple[int, int]]:
    """Yield the positions of the first mark of each step and of that of the next."""
    starts, is_made = [], True
    for position, mark in enumerate(marks):
        if mark.kind == END and mark.name == OPTIMIZER:
            is_made = True
        elif mark.kind == BEGIN and is_made and (mark.name in training or (not training and mark.name == BACKWARD)):
            starts.append(position)
            is_made = False
    yield from zip(starts, starts[1:])


def _step(marks: Sequence[Mark], first: int, last: int, training: set[str]) -> Step:
    step = Step(marks[first].seconds, marks[last].seconds, cpu=marks[last].cpu - marks[first].cpu)
    open_names: list[str] = []
    before = marks[first].seconds
    for position in range(first, last):
        mark, after = marks[position], marks[position + 1]
        _enter(step, mark, open_names, training)
        label = _label(marks, position, open_names, training)
        span = after.seconds - before
        if step.spans and step.spans[-1][0] == label:
            step.spans[-1] = (label, step.spans[-1][1], after.seconds)
        else:
            step.spans.append((label, before, after.seconds))
        before = after.seconds
        if not _is_meeting(open_names):
            step.phases[label] += span
    _find_meetings(step, marks[first:last], training, marks, first)
    _find_queue(step, marks, first, last)
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


def _is_meeting(open_names: Sequence[str]) -> bool:
    return any(name.startswith(CALL) for name in open_names)


def _label(marks: Sequence[Mark], position: int, open_names: Sequence[str], training: set[str]) -> str:
    if open_names:
        name = open_names[-1]
        if not name.startswith(DATA):
            return name
        return LOADING if name in training else EVALUATION
    return _named_by_next(marks, position, training)


def _named_by_next(marks: Sequence[Mark], position: int, training: set[str]) -> str:
    for mark in marks[position + 1 :]:
        if mark.kind != BEGIN:
            continue
        if mark.name == BACKWARD:
            return FORWARD
        if mark.name == OPTIMIZER:
            return GRADIENTS
        if mark.name.startswith(DATA):
            return EVALUATION if _is_evaluating(marks, position, training) else AFTER
    return AFTER


def _is_evaluating(marks: Sequence[Mark], position: int, training: set[str]) -> bool:
    """Return whether the last batch since the optimizer's step was not one to train on."""
    for mark in reversed(marks[: position + 1]):
        if mark.name == OPTIMIZER:
            return False
        if mark.name.startswith(DATA):
            return mark.name not in training
    return False


def _find_meetings(step: Step, own: Sequence[Mark], training: set[str], marks: Sequence[Mark], first: int) -> None:
    """Find the collective calls, and the ends of backward passes in which buckets were filled."""
    begun: dict[str, tuple[float, int]] = {}
    full: list[Mark] = []
    for position, mark in enumerate(own, first):
        if mark.kind == BEGIN:
            begun[mark.name] = (mark.seconds, position)
            full = [] if mark.name == BACKWARD else full
        elif mark.kind == MOMENT and mark.name == FULL:
            full.append(mark)
        elif mark.kind == END and mark.name in begun:
            came, since = begun.pop(mark.name)
            if mark.name.startswith(CALL):
                phase = BACKWARD if BACKWARD in begun else _named_by_next(marks, since, training)
                step.meetings.append(Meeting(mark.name, phase, came, mark.seconds, mark.value))
            elif mark.name == BACKWARD and full:
                came = full[-1].seconds
                size = sum(one.value for one in full)
                step.meetings.append(Meeting(ALL_REDUCE, BACKWARD, came, mark.seconds, size))
                step.phases[BACKWARD] -= mark.seconds - came
                full = []
    done = [mark for mark in marks[first:] if mark.name == DONE]
    for bucket, end in zip((mark for mark in own if mark.name == FULL), done):
        step.buckets.append((bucket.seconds, end.seconds, bucket.value))


def _find_queue(step: Step, marks: Sequence[Mark], first: int, last: int) -> None:
    counts = [mark.value for mark in marks[first:last] if mark.name == QUEUE]
    before = next((mark.value for mark in reversed(marks[:first]) if mark.name == QUEUE), None)
    if counts and before is not None:
        step.queued = counts[-1] - before
