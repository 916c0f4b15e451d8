"""Figures that decide about the training: the end, the learning rate, the best checkpoint."""

from __future__ import annotations

from retrofit.verify.checks.data.evaluated_samples import is_combined
from retrofit.verify.checks.data.evaluated_weights import evaluated_apart
from retrofit.verify.checks.data.evaluation import counted_fault
from retrofit.verify.checks.finding import Finding, fail_with, not_made, why_not
from retrofit.verify.checks.options import CheckOptions
from retrofit.verify.evidence import Run, Runs
from retrofit.verify.trace.settings import PARTS
from retrofit.verify.verdict import Verdict, count, not_applicable, passed

from .decided_figures import Parted, decisions_of, parted_from_one, parted_ranks
from .differences import last_same_step, tolerance_of
from .ranks_agree import disagreement


def decisions(runs: Runs, options: CheckOptions) -> Verdict:
    """Compare the figures by which the script decides, between the ranks and with one process."""
    check, title = "decisions", "what decides about the training is the figure of all ranks"
    reason = not_made(runs, "many")
    if reason:
        return not_applicable(check, title, reason)
    found = decisions_of(runs["many"].main)
    if not found:
        reason = "no figure decides when to stop, which state is kept, or by which learning rate to train"
        return not_applicable(check, title, why_not(runs["many"], reason))
    fault = decision_fault(runs, options)
    if fault is not None:
        return fail_with(check, title, fault)
    figures = sum(len(event.values) for events in found.values() for event in events)
    return passed(check, title, f"{count(figures, 'figure')} at {count(len(found), 'place')}")


def decision_fault(runs: Runs, options: CheckOptions) -> Finding | None:
    """Return the first decision that is made by another figure than that of all ranks."""
    many, reference = runs["many"], runs.get("reference")
    fault = disagreement(many)
    parted = parted_ranks(many)
    if parted is not None and (fault is None or fault.step is None or parted.event.step <= fault.step):
        return _finding(parted, many)
    tolerance = tolerance_of(many, options)
    if fault is not None or reference is None or not reference.ranks:
        return None
    last_step = last_same_step(runs, tolerance)
    parted = None if last_step is None else parted_from_one(many, reference, last_step)
    if parted is None:
        return None
    inexact = counted_fault(runs, options)
    if inexact is not None and inexact.cause is not None and is_combined(many.main, parted.event.step):
        summary = f"follows from the evaluation: {inexact.summary} (see evaluation)"
        return Finding(summary, inexact.cause, _step(parted), parted.shown(many.world_size))
    return _finding(parted, many)


def _finding(parted: Parted, many: Run) -> Finding:
    event, apart = parted.event, evaluated_apart(many, parted.event.step)
    place = f"`{event.text}` at {event.place}"
    if parted.rank is None:
        summary = f"rank 0 decides by a figure that one process does not have: {place}"
    elif event.text.endswith(".step"):
        summary = f"the learning rate follows each rank's own figure: {place}"
    else:
        summary = f"each rank decides by its own figure: {place}"
    note = None
    if parted.rank is not None and event.kind == PARTS:
        note = "in the steps that were run the ranks may decide the same; with other values they part, and wait forever"
    if apart is not None:
        summary += f"; {apart}"
    return Finding(summary, "RF401", _step(parted), parted.shown(many.world_size), note)


def _step(parted: Parted) -> int:
    return max(parted.event.step - 1, 0)
