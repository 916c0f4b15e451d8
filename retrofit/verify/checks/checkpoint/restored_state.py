"""State of a resumed run that its steps need not show: schedulers, averaged weights, files, figures, decisions.

An entry of a file or a figure counts where one process on the same batches has it, too: what it says is then the
training's, and not that of a clock or of a folder. Where the trace has cut the first epoch, a count that is larger
after a resume is undecided: the script may have taken len(loader) for the steps of an epoch.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from retrofit.verify.checks.finding import Finding
from retrofit.verify.checks.output.printed_numbers import values_after_evaluations
from retrofit.verify.checks.training.differences import fingerprints_differ
from retrofit.verify.evidence import RankTrace, Run, relative_difference
from retrofit.verify.trace.events import (
    EvaluatedModel,
    FileSave,
    LoggedScalar,
    ParserUse,
    StateBeforeStep,
    Value,
    Values,
)

from .figure_places import REPRODUCED, SAME, by_place
from .first_epoch import first_epoch_is_cut
from .random_states import random_state_faults
from .remembered_figures import decided_faults
from .saved_files import Place, saves

OF_THE_RUN = re.compile(
    r"time|date|elapsed|duration|seconds|minutes|hours|stamp|speed|throughput|\beta\b|memory|\bpid\b", re.IGNORECASE
)


def state_faults(many: Run, resumed: Run, done: int, witness: Run | None) -> Iterator[Finding]:
    """Yield what else differs in a run that continues after `done` steps, each kind once, in order of steps.

    `witness`: what it has, too, is of the training. Without one, files, figures and curves are not compared.
    """
    yield from memory_faults(many, resumed, done)
    yield from _evaluated_faults(many, resumed, done)
    yield from random_state_faults(many, resumed, done)
    if witness is not None:
        yield from _saved_faults(many, resumed, done, witness)
        yield from _figure_faults(many.main, resumed.main, done, witness.main)
        yield from _curve_faults(many, resumed.main, done, witness.main)
        yield from decided_faults(many, resumed, done, witness)


def memory_faults(many: Run, resumed: Run, done: int) -> Iterator[Finding]:
    """Yield the schedulers and scalers that hold something else before the first step, by their class."""
    found: set[str] = set()
    for rank, (ours, theirs) in enumerate(zip(many.ranks, resumed.ranks)):
        before, after = _states(ours, done), _states(theirs, 0)
        numbers = [_numbers_by_class(states) for states in (before, after)]
        for name, values in before.items():
            kind = name.rpartition(" ")[0]
            if name not in after or kind in found or numbers[0][kind] != numbers[1][kind]:
                continue
            key = next((key for key in values if key in after[name] and _differ(values[key], after[name][key])), None)
            if key is None:
                continue
            found.add(kind)
            what = "scaler" if "Scaler" in kind else "scheduler"
            summary = f"{kind}.{key} is another one: the {what} was not restored, on rank {rank}"
            undecided = first_epoch_is_cut(many) and _counts_on(values[key], after[name][key])
            yield Finding(summary, "RF507", done, _both(values[key], after[name][key]), undecided=undecided)


def _states(rank: RankTrace, step: int) -> dict[str, Values]:
    """Return what each scheduler and scaler held before a step."""
    return {event.name: event.values for event in rank.of(StateBeforeStep) if event.step <= step}


def _numbers_by_class(states: Mapping[str, Values]) -> dict[str, int]:
    kinds = [name.rpartition(" ")[0] for name in states]
    return {kind: kinds.count(kind) for kind in kinds}


def _evaluated_faults(many: Run, resumed: Run, done: int) -> Iterator[Finding]:
    """Yield the models that are evaluated with other weights and not trained, by their class."""
    found: set[str] = set()
    for rank, (ours, theirs) in enumerate(zip(many.ranks, resumed.ranks)):
        before, after = _evaluated(ours, done), _evaluated(theirs, 0)
        for step in sorted(before.keys() & after.keys()):
            for a, b in zip(before[step], after[step]):
                is_same_model = a.type == b.type and len(a.parameters) == len(b.parameters)
                if a.type in found or not is_same_model or not fingerprints_differ(a.parameters, b.parameters, SAME):
                    continue
                found.add(a.type)
                what = "which no optimizer trains (an average of the weights?)"
                summary = f"the weights of {a.type}, {what}, are others: they were not restored, on rank {rank}"
                yield Finding(summary, "RF507", done + step - 1)


def _evaluated(rank: RankTrace, done: int) -> dict[int, list[EvaluatedModel]]:
    found: dict[int, list[EvaluatedModel]] = {}
    for event in rank.of(EvaluatedModel):
        if event.step > done and not event.is_trained:
            found.setdefault(event.step - done, []).append(event)
    return found


def _saved_faults(many: Run, resumed: Run, done: int, witness: Run) -> Iterator[Finding]:
    """Yield the files that hold something else than without the stop, or are written at other steps."""
    ours, theirs, known = (saves(run.main, before) for run, before in ((many, done), (resumed, 0), (witness, done)))
    arguments = {option.dest for event in many.main.of(ParserUse) for option in event.options}
    found: set[str] = set()
    for place, event in sorted(ours.items(), key=lambda item: item[0][1]):
        if place not in known or place[1] > len(resumed.main.steps):
            continue
        step = done + place[1] - 1
        if place not in theirs:
            if resumed.finished and place[0] not in found:
                found.add(place[0])
                yield Finding(f"{place[0]} is not written as it is without the stop", "RF507", step)
            continue
        for name, value in _of_the_training(event, known[place], arguments).items():
            other, top = theirs[place].values.get(name), name.partition("/")[0]
            is_listed = name in theirs[place].values or "..." not in theirs[place].values
            if f"{place[0]}/{top}" in found or not is_listed or not _differ(value, other):
                continue
            found.add(f"{place[0]}/{top}")
            summary = (
                f"{top or 'the content'!r} in {place[0]} is another one than without the stop: it was not restored"
            )
            undecided = first_epoch_is_cut(many) and _counts_on(value, other)
            yield Finding(summary, "RF507", step, f"{name or 'it'}: {_both(value, other)}", undecided=undecided)
    yield from _more_files(many, resumed, done, witness)


def _more_files(many: Run, resumed: Run, done: int, witness: Run) -> Iterator[Finding]:
    """Yield the files of the run without the stop that the resumed one overwrites at a step where that one did not."""
    names = {name for name, _ in saves(many.main, -1)}
    expected = saves(many.main, done).keys() | saves(witness.main, done).keys()
    for name, step in sorted(saves(resumed.main, 0), key=lambda place: place[1]):
        if name in names and (name, step) not in expected and step <= len(many.main.steps) - done:
            because = "the best value so far, or a counter, was not restored"
            yield Finding(f"{name} is written, as it is not without the stop: {because}", "RF507", done + step - 1)
            return


def _of_the_training(ours: FileSave, known: FileSave, arguments: set[str]) -> Values:
    """Return the entries that say something of the training, as the witness's do.

    Left out are texts, times, options, and counts that a class keeps to itself (`_step_count` of a scheduler).
    """
    return {
        name: value
        for name, value in ours.values.items()
        if value is not None
        and not isinstance(value, str)
        and not OF_THE_RUN.search(name)
        and name.rpartition("/")[2] not in arguments
        and not (name.rpartition("/")[2].startswith("_") and isinstance(value, int))
        and name in known.values
        and not _differ(value, known.values[name], REPRODUCED)
    }


def _figure_faults(ours: RankTrace, theirs: RankTrace, done: int, witness: RankTrace) -> Iterator[Finding]:
    """Yield the first figure after an evaluation that is another one than without the stop."""
    expected, found, known = (
        by_place(values_after_evaluations(rank), since) for rank, since in ((ours, done), (theirs, 0), (witness, done))
    )
    for place in sorted(expected.keys() & found.keys() & known.keys(), key=lambda place: place[1]):
        value, other = expected[place], found[place]
        if value.equals(known[place]) and not value.equals(other):
            summary = f"{place[0]} is another one than without the stop: something of the state was not restored"
            yield Finding(
                summary, "RF507", done + place[1] - 1, f"{value.text} without the stop, {other.text} after it"
            )
            return


def _curve_faults(many: Run, theirs: RankTrace, done: int, witness: RankTrace) -> Iterator[Finding]:
    """Yield the first curve that continues at another place of its axis than without the stop."""
    axes, again, known = _axes(many.main, done), _axes(theirs, 0), _axes(witness, done)
    for place in sorted(axes.keys() & again.keys(), key=lambda place: place[1]):
        if axes[place] == known.get(place) != again[place]:
            shown = f"at {axes[place][0]} without the stop, at {again[place][0]} after it"
            summary, step = f"{place[0]} is logged at other steps after the resume", done + place[1] - 1
            undecided = first_epoch_is_cut(many) and _counts_on(axes[place][0], again[place][0])
            yield Finding(summary, "RF506", step, shown, undecided=undecided)
            return


def _axes(rank: RankTrace, done: int) -> dict[Place, list[int]]:
    """Return the places of each curve on its axis, by its name and the steps since `done`."""
    found: dict[Place, list[int]] = {}
    for event in rank.of(LoggedScalar):
        if event.axis is not None and event.step > done:
            found.setdefault((event.name, event.step - done), []).append(event.axis)
    return found


def _differ(a: Value, b: Value, tolerance: float = SAME) -> bool:
    if isinstance(a, list) and isinstance(b, list):
        return fingerprints_differ([a], [b], tolerance)
    if isinstance(a, (int, float)) and isinstance(b, (int, float)) and float in (type(a), type(b)):
        return relative_difference(float(a), float(b)) > tolerance
    return a != b


def _counts_on(a: Value, b: Value) -> bool:
    """Return whether a whole number is larger after a resume."""
    return isinstance(a, int) and isinstance(b, int) and b > a


def _both(a: Value, b: Value) -> str:
    return f"{_shown(a)} without the stop, {_shown(b)} after it"


def _shown(value: Value) -> str:
    if isinstance(value, list):
        return f"norm {value[0]:.10g}"
    return "nothing" if value is None else f"{value:.10g}" if isinstance(value, float) else str(value)
