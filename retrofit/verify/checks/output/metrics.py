"""Reported metrics and logged curves against those of one process."""

from __future__ import annotations

from retrofit.verify.checks.data.evaluated_samples import evaluation_fault, evaluations, is_combined
from retrofit.verify.checks.data.evaluated_weights import evaluated_apart
from retrofit.verify.checks.finding import Finding, fail_with, first_few, joined, not_made, ranks_named, why_not
from retrofit.verify.checks.options import CheckOptions
from retrofit.verify.checks.training.differences import (
    last_same_step,
    tolerance_of,
    trains_by_hand,
)
from retrofit.verify.evidence import RankTrace, Run, Runs
from retrofit.verify.trace.events import LoggedScalar
from retrofit.verify.verdict import Verdict, count, not_applicable, passed

from .printed_numbers import Value, values_after_evaluations
from .saved_tensors import tensor_fault
from .training_figures import training_fault
from .written_figures import figures_in_files
from .written_tables import table_fault


def metrics(runs: Runs, options: CheckOptions) -> Verdict:
    """Compare what rank 0 reports after each evaluation with what one process reports that has the same weights."""
    check, title = "metrics", "reported metrics are those of the whole data set"
    values = compared_values(runs, options)
    wrong = [] if isinstance(values, str) else [(a, b) for a, b in values if not a.equals(b)]
    if wrong:
        return fail_with(check, title, _fault(runs, wrong))
    fault = training_fault(runs, options) or _fault_of_results(runs, options)
    if fault is not None:
        return fail_with(check, title, fault)
    if isinstance(values, str):
        return not_applicable(check, title, values)
    names = len({ours.name for ours, _ in values})
    return passed(
        check, title, f"{count(len(values), 'value')} of {count(names, 'name')} are the same", _own_values(runs)
    )


def _fault_of_results(runs: Runs, options: CheckOptions) -> Finding | None:
    """Return what is wrong in the results that rank 0 has written, if the last weights are those of one process."""
    if not_made(runs, "many", "reference") is not None:
        return None
    last_step = last_same_step(runs, tolerance_of(runs["many"], options))
    if last_step is None or last_step < runs["many"].num_steps:
        return None
    return table_fault(runs["many"], runs["reference"]) or tensor_fault(runs["many"], runs["reference"])


def compared_values(runs: Runs, options: CheckOptions) -> list[tuple[Value, Value]] | str:
    """Return what rank 0 and one process give out after evaluations, with the same weights; else why not."""
    reason = not_made(runs, "many", "reference")
    if reason:
        return reason
    many, reference = runs["many"], runs["reference"]
    if not evaluations(many.main) or not evaluations(reference.main):
        return why_not(many, "rank 0 makes no evaluation over a DataLoader")
    ours, theirs = _figures(many), _figures(reference)
    pairs = [(a, b) for name in ours for a, b in zip(ours[name], theirs.get(name, []))]
    if not pairs:
        return why_not(many, "no decimal number is printed or logged after an evaluation")
    last_step = last_same_step(runs, tolerance_of(many, options))
    comparable = [(a, b) for a, b in pairs if last_step is not None and a.step <= last_step]
    if trains_by_hand(many):
        return "the weights are changed without an optimizer, which is not followed"
    return comparable or "the weights are not those of one process (see parameters)"


def _figures(run: Run) -> dict[str, list[Value]]:
    return {**values_after_evaluations(run.main), **figures_in_files(run)}


def _fault(runs: Runs, wrong: list[tuple[Value, Value]]) -> Finding:
    world = runs["many"].world_size
    a, b = wrong[0]
    cause, because = "RF401", "rank 0 reports another value than one process"
    inexact, apart = evaluation_fault(runs), evaluated_apart(runs["many"], a.step)
    if apart is not None:
        because = apart
    elif not is_combined(runs["many"].main, a.step):
        because = "rank 0 reports the value of its own share, which is not summed over the ranks"
    elif inexact is not None:
        cause, because = inexact.cause or cause, f"follows from the evaluation: {inexact.summary} (see evaluation)"
    others = [label for label in dict.fromkeys(value.label or value.name for value, _ in wrong) if label != a.label]
    notes = [f"others, too: {first_few(others)}" if others else None, _own_values(runs)]
    value = f"{a.text} with {world} processes, {b.text} with 1"
    summary = f"{a.label or a.name}: {because}"
    return Finding(summary, cause, max(a.step - 1, 0), value, joined(notes), place=a.where)


def _own_values(runs: Runs) -> str | None:
    """Return a note when ranks give out values of their own under one name; rank 0's count."""
    many = runs["many"]
    first = values_after_evaluations(many.main)
    others = [
        rank.rank
        for rank in many.ranks[1:]
        for name, values in values_after_evaluations(rank).items()
        if name in first and any(not a.equals(b) for a, b in zip(first[name], values))
    ]
    return f"{ranks_named(dict.fromkeys(others))} gives out other values of its own" if others else None


def logs(runs: Runs, options: CheckOptions) -> Verdict:
    """Compare the steps at which rank 0 logs its scalars with those of one process."""
    check, title = "logs", "curves are drawn over the steps of one process"
    reason = not_made(runs, "many", "reference")
    if reason:
        return not_applicable(check, title, reason)
    many, reference = runs["many"], runs["reference"]
    ours, theirs = _axes(many.main), _axes(reference.main)
    common = [name for name in ours if name in theirs]
    if not common:
        return not_applicable(check, title, why_not(many, "no scalar is logged with a step"))
    for name in common:
        a, b = ours[name], theirs[name]
        if not (many.finished and reference.finished):
            a, b = a[: len(b)], b[: len(a)]
        if [axis for axis, _ in a] != [axis for axis, _ in b]:
            return fail_with(check, title, _axis_fault(name, a, b, many.world_size))
    absent = [name for name in theirs if name not in ours] if many.finished else []
    if absent:
        return fail_with(check, title, Finding(f"rank 0 does not log {first_few(absent)}, one process does"))
    points = sum(len(ours[name]) for name in common)
    return passed(check, title, f"{count(points, 'point')} of {count(len(common), 'curve')}")


def _axes(rank: RankTrace) -> dict[str, list[tuple[object, int]]]:
    """Return for each scalar its places on the axis, each with the optimizer steps finished."""
    found: dict[str, list[tuple[object, int]]] = {}
    for event in rank.of(LoggedScalar):
        if event.axis is not None:
            found.setdefault(event.name, []).append((event.axis, event.step))
    return found


def _axis_fault(name: str, a: list[tuple[object, int]], b: list[tuple[object, int]], world: int) -> Finding:
    place = next((i for i, (x, y) in enumerate(zip(a, b)) if x[0] != y[0]), min(len(a), len(b)))
    shown = [str(axis[place][0]) if place < len(axis) else "nothing" for axis in (a, b)]
    value = f"point {place} of {name} at {shown[0]} with {world} processes, at {shown[1]} with 1"
    step = (a[place] if place < len(a) else b[place])[1]
    return Finding(f"{name} is logged at other steps", "RF506", max(step - 1, 0), value)
