"""Evaluation: the ranks together evaluate each sample exactly once."""

from __future__ import annotations

from retrofit.verify.checks.finding import Finding, fail_with, joined, not_made, why_not
from retrofit.verify.checks.options import CheckOptions
from retrofit.verify.checks.output.metrics import compared_values
from retrofit.verify.evidence import RankTrace, Run, Runs
from retrofit.verify.trace.events import MetricRows, RowsCut
from retrofit.verify.verdict import Verdict, count, not_applicable, passed

from .evaluated_samples import InexactEvaluation, Tally, inexact_evaluations
from .split import split_fault

SATURATED = (0.0, 1.0, 100.0)  # an accuracy with these values is the same with some samples counted twice


def evaluation(runs: Runs, options: CheckOptions) -> Verdict:
    """Compare what the ranks evaluate together with what one process evaluates."""
    check, title = "evaluation", "the ranks together evaluate every sample exactly once"
    reason = not_made(runs, "many")
    if reason is None and "one" not in runs and "reference" not in runs:
        reason = "there is no run of one process to compare with"
    if reason:
        return not_applicable(check, title, reason)
    fault = split_fault(runs)
    if fault is not None and fault.cause == "RF108":
        return not_applicable(check, title, "the ranks do not hold the same data (see split)")
    tally = Tally()
    undecided = None
    for inexact in inexact_evaluations(runs, tally):
        filled = f"{count(inexact.padding, 'sample')} fill up the last batches"
        if _is_padding_left_out(runs, options, inexact):
            tally.notes.append(f"{filled}, and no figure counts them")
            continue
        reason = _why_undecided(runs, options, inexact)
        if reason is None:
            return fail_with(check, title, inexact.fault)
        undecided = undecided or f"{filled}, and as many rows are cut off: no figure shows which ones, because {reason}"
    if undecided is not None:
        return not_applicable(check, title, undecided)
    if not tally.judged:
        return not_applicable(check, title, why_not(runs["many"], "no evaluation over a DataLoader was recorded"))
    summary = f"{count(tally.judged, 'evaluation')} of {count(tally.samples, 'sample')}"
    return passed(check, title, summary, joined(tally.notes))


def counted_fault(runs: Runs, options: CheckOptions) -> Finding | None:
    """Return the first evaluation that repeats or leaves out samples in a figure, if there is one."""
    return next((one.fault for one in inexact_evaluations(runs) if _is_counted(runs, options, one)), None)


def _is_counted(runs: Runs, options: CheckOptions, inexact: InexactEvaluation) -> bool:
    is_left_out = _is_padding_left_out(runs, options, inexact)
    return not is_left_out and _why_undecided(runs, options, inexact) is None


def _why_undecided(runs: Runs, options: CheckOptions, inexact: InexactEvaluation) -> str | None:
    """Return why no figure tells what the script cuts off, where that is as many rows as fill up the last batches."""
    if not inexact.padding or not _is_as_much_cut(runs["many"], inexact):
        return None
    values = compared_values(runs, options)
    if isinstance(values, str):
        return values
    return "they are the same with some samples counted twice" if all(a.equals(b) for a, b in values) else None


def _is_as_much_cut(many: Run, inexact: InexactEvaluation) -> bool:
    """Return whether rank 0 cuts off as many rows of what was gathered as are too many, or the ranks do together."""
    cuts = [
        [event.rows - event.kept for event in rank.of(RowsCut) if event.step == inexact.at_step] for rank in many.ranks
    ]
    return inexact.padding in cuts[0] or sum(max(of_rank, default=0) for of_rank in cuts) == inexact.padding


def _is_padding_left_out(runs: Runs, options: CheckOptions, inexact: InexactEvaluation) -> bool:
    """Return whether samples that fill up the last batches, so that ranks have as many, are in no figure."""
    if not inexact.padding:
        return False
    return _is_gathered_exactly(runs["many"].main, inexact) or _figures_agree(runs, options, inexact)


def _is_gathered_exactly(main: RankTrace, inexact: InexactEvaluation) -> bool:
    """Return whether a library gathered for the figures as many rows as one process has samples, once or repeatedly."""
    rows = [event.rows for event in main.of(MetricRows) if event.step == inexact.at_step]
    return bool(rows) and sum(rows) % inexact.length == 0


def _figures_agree(runs: Runs, options: CheckOptions, inexact: InexactEvaluation) -> bool:
    """Return whether the figures of this evaluation are those of one process, and at least one could tell."""
    values = compared_values(runs, options)
    if isinstance(values, str) or not all(ours.equals(theirs) for ours, theirs in values):
        return False
    share = inexact.padding / (inexact.length + inexact.padding)
    own = [ours for ours, _ in values if ours.step == inexact.at_step and ours.number not in SATURATED]
    return any(value.rounding < share * abs(value.number) / 10 for value in own)
