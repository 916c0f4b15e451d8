"""BatchNorm statistics: of the whole batch, or of one rank's samples."""

from __future__ import annotations

from retrofit.verify.checks.finding import Finding, fail_with, not_made, why_not
from retrofit.verify.checks.options import CheckOptions
from retrofit.verify.evidence import Run, Runs
from retrofit.verify.trace.events import BatchStatistics, LocalBatchNorm
from retrofit.verify.verdict import Verdict, count, not_applicable, passed


def batchnorm(runs: Runs, options: CheckOptions) -> Verdict:
    """Check whether BatchNorm computes its statistics over the batch of all ranks."""
    check, title = "batchnorm", "BatchNorm uses the statistics of the whole batch"
    reason = not_made(runs, "many")
    if reason:
        return not_applicable(check, title, reason)
    many = runs["many"]
    local = [rank.first(LocalBatchNorm) for rank in many.ranks]
    found = [event for event in local if event is not None]
    if found and all(event.rows == _rows_alone(runs) for event in found):
        return passed(check, title, f"statistics of {count(found[0].rows, 'sample')}, as on one process")
    if found and many.world_size > 1:
        rows = found[0].rows
        together = sum(event.rows for event in found) if len(found) == many.world_size else rows * many.world_size
        note = "the other checks were made with statistics of the whole batch, so this difference is not in them"
        summary = f"statistics of {rows} of {together} samples ({found[0].channels} channels)"
        return fail_with(check, title, Finding(summary, "RF206", note=note))
    if not many.num_steps or not has_batchnorm(many):
        return not_applicable(check, title, why_not(many, "the model has no BatchNorm"))
    return passed(check, title, "no layer uses the statistics of one rank's share")


def _rows_alone(runs: Runs) -> int | None:
    """Return of how many samples one process has statistics: of one micro batch, where these are of one size."""
    reference = runs.get("reference")
    event = reference.main.first(BatchStatistics) if reference is not None and reference.ranks else None
    return None if event is None else event.rows


def has_batchnorm(run: Run) -> bool:
    return any("running_mean" in name for name in run.main.steps[-1].buffers)
