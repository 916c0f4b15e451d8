"""Gradients that are not averaged over the ranks: which, in which steps, and how that shows."""

from __future__ import annotations

from collections.abc import Sequence

from retrofit.verify.checks.finding import first_few
from retrofit.verify.checks.processes.errors import cause_of, first_failure
from retrofit.verify.evidence import RankTrace, Run
from retrofit.verify.trace.events import OptimizerFound, OptimizerStep, ParametersAdded, UnsyncedForward, Weights

from .clipped import own_factors
from .traffic import traffic

ENOUGH = 0.99  # of a step's gradient elements; hooks may drop a few


def averaging_fault(run: Run, number: int, steps: Sequence[OptimizerStep]) -> tuple[str, str | None]:
    """Return why the ranks' weights differ after a step, and the rule's code; `steps`: the event of each rank."""
    parts = traffic(run.main)
    part = parts[number]
    same = [other for other in parts if other.opt == part.opt and other.needed]
    enough = [other for other in same if other.reduced >= ENOUGH * other.needed]
    failure = first_failure(run)
    if part.reduced < ENOUGH * part.needed and failure is not None and cause_of(failure, run) == "RF204":
        return (
            "DDP waits for gradients of parameters without one, and never averages the others (see completes)",
            "RF204",
        )
    unsynced = _unsynced(run, number, steps)
    if unsynced is not None:
        return unsynced, "RF202"
    left_out = _left_out(run, number, steps)
    if left_out:
        names = f"{first_few(left_out)} {'is' if len(left_out) == 1 else 'are'}"
        return f"the gradient of {names} never averaged over the ranks, that of other parameters is", "RF211"
    if not enough:
        most = max((other.reduced / other.needed for other in same), default=0.0)
        if most < 1 - ENOUGH:
            return "no gradient is averaged over the ranks in any step", "RF201"
        return f"only {most:.0%} of the gradient elements are averaged over the ranks", "RF201"
    if part.reduced < ENOUGH * part.needed:
        return f"gradients are averaged in {len(enough)} of {len(same)} steps, not in this one", "RF202"
    if part.backwards > 1 and part.reduced_last < ENOUGH * part.needed:
        return f"gradients are averaged before the last of {part.backwards} backward calls of the step", "RF202"
    scaled = own_factors(run, number)
    if scaled is not None:
        return f"{scaled.summary} ({scaled.value})", scaled.cause
    if _apart(steps):
        return (
            "as much is averaged as the gradients have, and yet each rank steps with its own: a copy of them was "
            "averaged, or they were changed afterwards",
            "RF211",
        )
    return "all ranks step with the same gradients, and yet their weights differ: something else changes them", None


def _unsynced(run: Run, number: int, steps: Sequence[OptimizerStep]) -> str | None:
    """Return that the gradients which the ranks do not have in common are of a forward pass without averaging."""
    events = [event for event in run.main.of(UnsyncedForward) if event.number == number]
    apart = _apart(steps)
    if not events or not apart or not apart <= set(events[0].parameters):
        return None
    event = events[0]
    names = parameter_names(run.main, steps[0])
    shown = first_few([names[place] for place in sorted(apart)])
    where = f" ({event.where})" if event.where else ""
    ran = "inside no_sync" if event.in_no_sync else "with require_backward_grad_sync = False"
    return f"the forward pass ran {ran}{where}: the gradients of {shown} are not averaged in this step"


def _left_out(run: Run, number: int, steps: Sequence[OptimizerStep]) -> list[str]:
    """Return the parameters whose gradients are never averaged, where those of others are; else none."""
    names = parameter_names(run.main, steps[0])
    apart = _apart(steps) or _other_weights(steps)
    trained = {place for place, gradient in enumerate(steps[0].gradients) if gradient is not None}
    rows = list(zip(*(rank.steps for rank in run.ranks)))
    if trained - apart:
        later = [row for row in rows[number:] if row[0].optimizer == steps[0].optimizer]
        never = {place for place in apart if all(place in (_apart(row) or _other_weights(row)) for row in later)}
        return [names[place] for place in sorted(never) if place < len(names)]
    own = [row for row in rows if row[0].optimizer == steps[0].optimizer]
    others = [row for row in rows if row[0].optimizer != steps[0].optimizer]
    if others and all(_apart(row) for row in own) and any(not _apart(row) for row in others):
        return names
    return []


def _apart(steps: Sequence[OptimizerStep]) -> set[int]:
    """Return the places of the parameters of which the ranks have other gradients in a step."""
    rows = zip(*(step.gradients for step in steps))
    return {place for place, row in enumerate(rows) if any(str(other) != str(row[0]) for other in row[1:])}


def _other_weights(steps: Sequence[Weights]) -> set[int]:
    rows = zip(*(step.parameter_hashes for step in steps))
    return {place for place, row in enumerate(rows) if len(set(row)) > 1}


def parameter_names(rank: RankTrace, event: Weights) -> list[str]:
    """Return the names of the parameters of the optimizer that `event` is about."""
    described: list[OptimizerFound | ParametersAdded] = [*rank.of(OptimizerFound), *rank.of(ParametersAdded)]
    names = [name for one in described if one.optimizer == event.optimizer for name in one.names]
    return names or [f"parameter {i}" for i in range(len(event.parameters))]
