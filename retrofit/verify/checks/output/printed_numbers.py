"""Numbers that a script prints or logs, after an evaluation or anywhere."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from retrofit.distributed.failure.shown_figures import OF_THE_CLOCK, OF_THE_MODEL, OF_THE_RUN
from retrofit.verify.checks.data.evaluated_samples import evaluations
from retrofit.verify.evidence import Iteration, RankTrace
from retrofit.verify.trace.events import (
    BackwardCall,
    BatchDrawn,
    Event,
    IterationEnd,
    IterationStart,
    LoggedScalar,
    OptimizerStep,
    OutputLine,
)

NUMBER = re.compile(
    r"(?<![\w.])[-+]?(?:\d+\.\d*(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?|\d+(?:[eE][-+]?\d+)?|nan\b|inf\b)",
    re.IGNORECASE,
)
OF_TRAINING = re.compile(r"train|\blr\b|learning.rate", re.IGNORECASE)
OF_RATE = re.compile(r"\blr\b|learning.rate", re.IGNORECASE)
# A whole number may be an epoch or a size; after these words it is a figure of the model: "Accuracy: 812/1000".
COUNTED = re.compile(rf"{OF_THE_MODEL.pattern}|(correct|right|wrong|hits|misses|matches)\W*$", re.IGNORECASE)
OF_A_WHOLE_NUMBER = 1.0  # it may be rounded
RELATIVE = 1e-6
OFTEN = 3  # values that rounding alone does not change by one digit


@dataclass(frozen=True)
class Value:
    """One number that the script gave out after an evaluation."""

    name: str  # of a scalar, or the line with # for its numbers: the same in all runs
    number: float
    text: str  # as printed
    rounding: float  # what the printed digits leave open
    step: int  # optimizer steps finished
    label: str = ""  # for a reader: "val_iou"
    where: str | None = None  # the line of the script that gives it out, and its function

    @property
    def place(self) -> str:
        """The line that gives it out, as `file:line`; "" where it is not known."""
        return (self.where or "").partition(" in ")[0]

    def equals(self, other: Value) -> bool:
        """Return whether both are the same up to rounding and up to what the printed digits can tell."""
        if math.isnan(self.number) or math.isnan(other.number):
            return math.isnan(self.number) and math.isnan(other.number)
        if self.number == other.number:
            return True
        scale = max(abs(self.number), abs(other.number))
        return abs(self.number - other.number) <= max(RELATIVE * scale, self.rounding)

    def clearly_differs(self, other: Value) -> bool:
        """Return whether the difference is more than a unit of the last printed digit, which rounding may change."""
        return not self.equals(other) and not abs(self.number - other.number) <= 1.01 * (self.rounding + other.rounding)


def values_after_evaluations(rank: RankTrace, leaves_out: re.Pattern[str] = OF_TRAINING) -> dict[str, list[Value]]:
    """Return the numbers given out between the end of an evaluation and the next training batch, by name, in order."""
    found: dict[str, list[Value]] = {}
    for start, end in _gaps(rank):
        for event in rank.events[start:end]:
            for value in _values_of(event, leaves_out):
                found.setdefault(value.name, []).append(value)
    of_batches = _names_within_evaluations(rank)
    return {name: values for name, values in found.items() if name not in of_batches}


def after_evaluations(rank: RankTrace) -> list[int]:
    """Return the optimizer steps that were finished at each time after an evaluation."""
    return [rank.events[start].step for start, end in _gaps(rank) if start < len(rank.events)]


def _names_within_evaluations(rank: RankTrace) -> set[str]:
    """Return what is given out between the batches of an evaluation: its progress, in figures of rank 0's batches."""
    places = [p for one in evaluations(rank) for p in range(one.batch_positions[0], one.batch_positions[-1])]
    return {value.name for place in places for value in _values_of(rank.events[place])}


def summaries_of_epochs(rank: RankTrace) -> dict[str, list[Value]]:
    """Return the numbers given out between two epochs alone, without those that are compared after evaluations."""
    found: dict[str, list[Value]] = {}
    elsewhere = set(values_after_evaluations(rank)) | _names_within_evaluations(rank)
    between = {place for start, end in _between_epochs(rank) for place in range(start, end)}
    for place, event in enumerate(rank.events):
        for value in _values_of(event, OF_RATE):
            if place in between:
                found.setdefault(value.name, []).append(value)
            else:
                elsewhere.add(value.name)
    return {name: values for name, values in found.items() if name not in elsewhere}


def all_values(rank: RankTrace) -> dict[str, list[Value]]:
    """Return the numbers that are given out in a run, those of the training too, by name, in order."""
    found: dict[str, list[Value]] = {}
    for event in rank.events:
        for value in _values_of(event, leaves_out=OF_RATE):
            found.setdefault(value.name, []).append(value)
    return found


def pairs_by_step(ours: Sequence[Value], theirs: Sequence[Value]) -> list[tuple[Value, Value]]:
    """Return the values of one name in two runs, those of the same step together; a step with more in one is left out.

    So a line that one run prints more often, or in other words, does not shift what is compared.
    """
    by_step: dict[int, list[Value]] = {}
    for value in theirs:
        by_step.setdefault(value.step, []).append(value)
    counts = Counter(value.step for value in ours)
    own = [value for value in ours if counts[value.step] == len(by_step.get(value.step, []))]
    return [(value, by_step[value.step].pop(0)) for value in own]


def clearly_apart(pairs: Sequence[tuple[Value, Value]]) -> list[tuple[Value, Value]]:
    """Return the pairs of a name that differ: by more than the last digit, which rounding may change, or often."""
    apart = [(a, b) for a, b in pairs if not a.equals(b)]
    return apart if len(apart) >= OFTEN else [(a, b) for a, b in apart if a.clearly_differs(b)]


def half_of_last_digit(text: str) -> float:
    """Return half a unit of the last digit of a printed number; 0 where it has no digits (nan, inf)."""
    if text.strip("+-").lower() in ("nan", "inf"):
        return 0.0
    mantissa, _, exponent = text.lower().partition("e")
    return 0.5 * 10.0 ** (int(exponent or 0) - len(mantissa.partition(".")[2]))


def skeleton(line: str) -> tuple[str, list[tuple[str, str]]]:
    """Return a line with # for its numbers, however wide they are, and the numbers, each with the words before it.

    A date, a time of day or a duration does not count as one.
    """
    line = OF_THE_CLOCK.sub("TIME", line)
    numbers, last = [], 0
    for match in NUMBER.finditer(line):
        numbers.append((line[last : match.start()], match.group()))
        last = match.end()
    return " ".join(NUMBER.sub("#", line).split()), numbers


def _gaps(rank: RankTrace) -> Iterator[tuple[int, int]]:
    """Yield the parts of the trace between the end of an evaluation and the next training."""
    starts = sorted({one.over_position for one in evaluations(rank) if one.over_position is not None})
    passes = {one.begin.iteration: one for one in rank.iterations}
    covered = 0
    for start in starts:
        if start < covered:
            continue
        end = next((i for i in range(start, len(rank.events)) if _is_training(rank.events[i], passes)), None)
        covered = len(rank.events) if end is None else end
        yield start, covered


def _between_epochs(rank: RankTrace) -> Iterator[tuple[int, int]]:
    """Yield the parts of the trace from the end of one epoch's training to the start of the next."""
    passes = {one.begin.iteration: one for one in rank.iterations}
    start, is_over = 0, False  # after what was trained last, and whether a pass has come to its end since
    for place, event in enumerate(rank.events):
        if isinstance(event, IterationEnd):
            if (event.is_exhausted or event.is_capped) and event.iteration in passes and passes[event.iteration].train:
                start, is_over = place + 1, True
        elif _is_training(event, passes):
            if is_over and isinstance(event, IterationStart):
                yield start, place
                is_over = False
            start = place + 1
    if is_over:
        yield start, len(rank.events)


def _is_training(event: Event, passes: dict[int, Iteration]) -> bool:
    if isinstance(event, (BatchDrawn, IterationStart)):
        return event.iteration in passes and passes[event.iteration].train
    return isinstance(event, (BackwardCall, OptimizerStep))


def _values_of(event: Event, leaves_out: re.Pattern[str] = OF_TRAINING) -> Iterator[Value]:
    if isinstance(event, LoggedScalar):
        if not leaves_out.search(event.name) and not OF_THE_RUN.search(event.name):
            yield Value(event.name, event.value, f"{event.value:.10g}", 0.0, event.step, event.name, event.where)
    elif isinstance(event, OutputLine):
        for words, value in values_of_line(event.text):
            if not leaves_out.search(words):
                yield replace(value, step=event.step, where=event.where)


def values_of_line(line: str) -> Iterator[tuple[str, Value]]:
    """Yield the figures of a line, each with the words before it; its step and its place are for the caller."""
    name, numbers = skeleton(line)
    is_of_run = bool(OF_THE_RUN.search(line))
    for position, (words, text) in enumerate(numbers, 1):
        if not (_is_decimal(text) or COUNTED.search(words)) or (is_of_run and not OF_THE_MODEL.search(words)):
            continue
        key = f"{name!r}, number {position}" if len(numbers) > 1 else repr(name)
        rounding = half_of_last_digit(text) if _is_decimal(text) else OF_A_WHOLE_NUMBER
        yield words, Value(key, float(text), text, rounding, 0, _label(words, position))


def _label(words: str, position: int) -> str:
    """Return what a printed number is called by the words before it: of ", val_iou: " that is "val_iou"."""
    named = re.split(r"[|,;()\[\]]", words)[-1].strip(" \t:=@-/%")
    return f"the printed {named[-40:].strip()}" if re.search(r"[^\W\d]", named) else f"number {position} of a line"


def _is_decimal(text: str) -> bool:
    return "." in text or text.strip("+-").lower() in ("nan", "inf")
