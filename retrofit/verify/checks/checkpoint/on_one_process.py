"""A resumed training against one process that resumes from the same checkpoint and trains on the same batches.

That process runs the script before the change, where there is one. What the script does not restore on one process
either hides what else is lost: here it is the same on both sides.
"""

from __future__ import annotations

from collections.abc import Iterator

from retrofit.verify.checks.data.split import own_datasets
from retrofit.verify.checks.finding import Finding, not_made
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
from retrofit.verify.trace.events import DecisionInput

from .figure_places import REPRODUCED

ON_ONE = "resumed_on_one"  # the run on one process
SAME_RATE = 1e-9  # relative
OF_ONE = "of one process from the same checkpoint"


def fault_against_one(runs: Runs, done: int, options: CheckOptions) -> Finding | None:
    """Return the first thing in which the ranks continue otherwise than one process does from their checkpoint.

    Nothing is said where the training without the stop is not that of one process, or only by rounding.
    """
    if not_made(runs, "many", "reference", "resumed", ON_ONE) or options.precision == AS_IS:
        return None
    many, resumed, alone = runs["many"], runs["resumed"], runs[ON_ONE]
    pair: Runs = {"many": resumed, "reference": alone}
    without_stop: Runs = {"many": many, "reference": runs["reference"]}
    tolerance = tolerance_of(many, options)
    if not (resumed.finished and alone.finished and compared_steps(pair)) or own_datasets(runs) is not None:
        return None
    if averaged_weights(many) is not None or any(_steps_apart(without_stop, tolerance)):
        return None
    start = initial_fault(pair, tolerance)
    if start is not None:
        summary = f"the resumed script does not start from the weights {OF_ONE}"
        return Finding(summary, "RF507", done, start.value)
    for summary, apart in sorted(_steps_apart(pair, tolerance), key=lambda one: one[1].step):
        return Finding(summary, "RF507", done + apart.step, apart.value)
    return _decided_fault(pair, without_stop, done)


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
