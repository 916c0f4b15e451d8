"""Restarts that fail, compared with one of the script before the change on one process, from its own checkpoint."""

from __future__ import annotations

from retrofit.verify.checks.processes.errors import first_failure
from retrofit.verify.evidence import Run, Runs

CONTROL = "alone_resumed"
RESTARTS = ("resumed", "reload", "reload_original")


def fails_as_before(runs: Runs, run: Run) -> str | None:
    """Return the error of a restart where the script before the change fails with it, too; None otherwise."""
    control = runs.get(CONTROL)
    if run.name not in RESTARTS or run.finished or control is None or control.finished:
        return None
    ours, theirs = first_failure(run), first_failure(control)
    if ours is None or theirs is None or (ours.type, ours.message) != (theirs.type, theirs.message):
        return None
    return theirs.sentence
