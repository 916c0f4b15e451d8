"""Restarts that fail, compared with one on one process from its own checkpoint.

That is a restart of the script before the change, where there is one: what it does, too, the change did not cause.
"""

from __future__ import annotations

from retrofit.verify.checks.options import CheckOptions
from retrofit.verify.checks.processes.errors import first_failure
from retrofit.verify.evidence import Run, Runs

CONTROL = "alone_resumed"
RESTARTS = ("resumed", "reload", "reload_original")
ON_ONE_PROCESS = "the script does the same on one process"


def shows_original(runs: Runs, options: CheckOptions) -> bool:
    """Return whether what is seen on one process is what the script did before the change."""
    return "original" in runs or options.is_converted


def fails_as_before(runs: Runs, run: Run, options: CheckOptions) -> str | None:
    """Return the error of a restart where the script before the change fails with it, too; None otherwise."""
    return fails_on_one_process(runs, run) if shows_original(runs, options) else None


def fails_on_one_process(runs: Runs, run: Run) -> str | None:
    """Return the error of a restart where the one on one process fails with it, too; None otherwise."""
    control = runs.get(CONTROL)
    if run.name not in RESTARTS or run.finished or control is None or control.finished:
        return None
    ours, theirs = first_failure(run), first_failure(control)
    if ours is None or theirs is None or (ours.type, ours.message) != (theirs.type, theirs.message):
        return None
    return theirs.sentence
