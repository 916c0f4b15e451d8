"""A resumed training against one process that resumes from the same checkpoint and trains on the same batches.

That process runs the script before the change, where there is one. What the script does not restore on one process
either hides what else is lost: here it is the same on both sides.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from retrofit.verify.checks.data.split import own_datasets
from retrofit.verify.checks.finding import Finding, first_few, not_made
from retrofit.verify.checks.options import AS_IS, CheckOptions
from retrofit.verify.checks.training.causes.averaged_weights import averaged_weights
from retrofit.verify.checks.training.decided_figures import SMALLEST
from retrofit.verify.checks.training.differences import (
    LOSS,
    PARAMETERS,
    StepDifference,
    compared_steps,
    differences,
    initial_fault,
    tolerance_of,
)
from retrofit.verify.evidence import Run, Runs, relative_difference
from retrofit.verify.trace.events import DecisionInput, FileLoad

from ..figure_places import REPRODUCED

ON_ONE = "resumed_on_one"  # the run on one process
LOADED, LOADED_ON_ONE = "loaded", "loaded_on_one"  # with a checkpoint that is loaded to begin another training
SAME_RATE = 1e-9  # relative
OF_ONE = "of one process from the same checkpoint"


def fault_against_one(runs: Runs, done: int, options: CheckOptions) -> Finding | None:
    """Return the first thing in which the ranks continue otherwise than one process does from their checkpoint."""
    compared = _compared_runs(runs, options)
    if compared is None:
        return None
    pair, without_stop = compared
    tolerance = tolerance_of(runs["many"], options)
    start = initial_fault(pair, tolerance)
    if start is not None:
        return Finding(f"the weights before the first step are not those {OF_ONE}", "RF507", done, start.value)
    for summary, apart in sorted(_steps_apart(pair, tolerance), key=lambda one: one[1].step):
        return Finding(summary, "RF507", done + apart.step, apart.value)
    return _decided_fault(pair, without_stop, done)


def _compared_runs(runs: Runs, options: CheckOptions) -> tuple[Runs, Runs] | None:
    """Return the ranks and the one process after the resume, and without it.

    None where the training without the stop is not that of one process, or only by rounding.
    """
    if not_made(runs, "many", "reference", "resumed", ON_ONE) or options.precision == AS_IS:
        return None
    pair: Runs = {"many": runs["resumed"], "reference": runs[ON_ONE]}
    without_stop: Runs = {"many": runs["many"], "reference": runs["reference"]}
    if not all(run.finished for run in pair.values()) or not compared_steps(pair):
        return None
    if own_datasets(runs) is not None or averaged_weights(runs["many"]) is not None:
        return None
    is_same = not any(_steps_apart(without_stop, tolerance_of(runs["many"], options)))
    return (pair, without_stop) if is_same else None


def fault_of_loading(runs: Runs, options: CheckOptions) -> Finding | None:
    """Return the first thing in which a training that begins with loaded weights is not that of one process."""
    loading = _with_loading(runs)
    fault = None if loading is None else fault_against_one(loading, 0, options)
    return (
        None if fault is None else replace(fault, note=f"the script begins with {_loaded_files(runs)}, which it loads")
    )


def loading_note(runs: Runs, options: CheckOptions) -> str | None:
    """Return that the training that begins with loaded weights is that of one process, where that was compared."""
    loading = _with_loading(runs)
    if loading is None or _compared_runs(loading, options) is None:
        return None
    return f"with {_loaded_files(runs)} loaded to begin with, the weights and losses are those of one process"


def _with_loading(runs: Runs) -> Runs | None:
    if LOADED not in runs or LOADED_ON_ONE not in runs:
        return None
    return {**runs, "resumed": runs[LOADED], ON_ONE: runs[LOADED_ON_ONE]}


def _loaded_files(runs: Runs) -> str:
    loads = [event.path for event in runs[LOADED_ON_ONE].main.of(FileLoad) if event.step == 0 and event.path]
    return first_few(dict.fromkeys(loads))


def _steps_apart(runs: Runs, tolerance: float) -> Iterator[tuple[str, StepDifference]]:
    """Yield the first step with another rate, loss or other weights: what is yielded first explains the others."""
    for step in range(compared_steps(runs)):
        ours, theirs = (runs[name].main.steps[step].lr for name in ("many", "reference"))
        if any(relative_difference(a, b) > SAME_RATE for a, b in zip(ours, theirs)):
            apart = StepDifference(step, 0.0, f"{ours[0]:.6g} with several processes, {theirs[0]:.6g} with 1")
            yield f"the learning rate is not that {OF_ONE}: the scheduler or the optimizer was not restored", apart
            break
    texts = {
        LOSS: f"the loss is not that {OF_ONE} with the same samples",
        PARAMETERS: f"after a step with the same loss the weights are not those {OF_ONE}: optimizer state was lost",
    }
    for quantity, text in texts.items():
        first = next((one for one in differences(runs, quantity) if one.size > tolerance), None)
        if first is not None:
            yield text, first


def _decided_fault(pair: Runs, without_stop: Runs, done: int) -> Finding | None:
    """Return a figure in a decision that is another one; it must be that of one process without the stop."""
    sure = _figures(without_stop["many"]), _figures(without_stop["reference"])
    ours, theirs = _figures(pair["many"]), _figures(pair["reference"])
    for (text, name, number), (value, event) in ours.items():
        other = theirs.get((text, name, number))
        if other is None or other[1].step != event.step or not _is_of_training(text, name, *sure):
            continue
        if relative_difference(value, other[0], SMALLEST) > REPRODUCED:
            summary = f"{name!r}, by which `{text}` decides, is not that {OF_ONE}: it was not restored"
            shown = f"{value:.10g} with several processes, {other[0]:.10g} with 1"
            return Finding(summary, "RF507", done + event.step - 1, shown, place=event.place)
    return None


Figures = dict[tuple[str, str, int], tuple[float, DecisionInput]]


def _is_of_training(text: str, name: str, ours: Figures, theirs: Figures) -> bool:
    """Return whether several processes and one have the same figures in a decision, each time it is made."""
    pairs = [(value, theirs.get(place)) for place, (value, _) in ours.items() if place[:2] == (text, name)]
    same = [
        other is not None and relative_difference(value, other[0], SMALLEST) <= REPRODUCED for value, other in pairs
    ]
    return bool(same) and all(same)


def _figures(run: Run) -> Figures:
    """Return the figures of rank 0 by the text of the decision, their name, and how many came before.

    The line and the file of a decision may be others in the script before the change.
    """
    found: Figures = {}
    seen: dict[tuple[str, str], int] = {}
    for event in run.main.of(DecisionInput):
        for name, value in zip(event.names, event.values):
            number = seen[event.text, name] = seen.get((event.text, name), -1) + 1
            found[event.text, name, number] = value, event
    return found
