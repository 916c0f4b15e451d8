"""The end of every run, and the error of one that fails."""

from __future__ import annotations

import signal
from dataclasses import replace

from retrofit.verify.checks.checkpoint.one_process.own_restart import (
    ON_ONE_PROCESS,
    fails_as_before,
    fails_on_one_process,
)
from retrofit.verify.checks.finding import LABELS, Finding, fail_with
from retrofit.verify.checks.options import CheckOptions
from retrofit.verify.evidence import Run, Runs
from retrofit.verify.verdict import Verdict, count, not_applicable, passed

from .collectives import collectives_fault
from .errors import Failure, cause_of, comes_from_precision, first_failure
from .own_draws import OWN_DRAWS, decided_by_draws

ORDER = ("original", "one", "many", "reference", "resumed", "reload", "reload_original", OWN_DRAWS)
CONTROLLED = ("many", "reference", "resumed", "reload", "reload_original", OWN_DRAWS)


def completes(runs: Runs, options: CheckOptions) -> Verdict:
    """Check that each process of each run ended with status 0; name the first error where one did not."""
    check, title = "completes", "every run comes to its end"
    runs = {name: run for name, run in runs.items() if name != "default"}  # see default_mode
    if not runs:
        return not_applicable(check, title, "nothing was run")
    failed = (runs[name] for name in ORDER if name in runs and not runs[name].finished)
    broken = [run for run in failed if fails_as_before(runs, run, options) is None]
    if not broken:
        return passed(check, title, f"{count(len(runs), 'run')} ended with status 0 on every process")
    fault = _original_fault(runs) or _fault_of_both(runs) or fault_of(broken[0], runs)
    if broken[0].name == OWN_DRAWS and (broken[0].hung or collectives_fault(broken[0]) is not None):
        fault = decided_by_draws(fault, runs["many"])
    others = [LABELS[run.name] for run in broken[1:]]
    note = "; ".join(part for part in (fault.note, f"failed too: {', '.join(others)}" if others else None) if part)
    return fail_with(check, title, replace(fault, note=note or None))


def _original_fault(runs: Runs) -> Finding | None:
    original = runs.get("original")
    if original is None or original.finished:
        return None
    fault = fault_of(original, runs)
    return replace(fault, cause="RF001", note=None)


def _fault_of_both(runs: Runs) -> Finding | None:
    """Return the fault of a script that fails in the same way with and without other processes."""
    one, many = runs.get("one"), runs.get("many")
    if one is None or many is None or one.finished or many.finished or "original" in runs:
        return None
    single, several = first_failure(one), first_failure(many)
    if single is None or several is None or single.type != several.type:
        return None
    fault = fault_of(one, runs)
    return replace(fault, cause="RF001", note=None)


def fault_of(run: Run, runs: Runs) -> Finding:
    failure = first_failure(run)
    label = LABELS[run.name]
    steps = max((len(rank.steps) for rank in run.ranks), default=0)
    step = steps or None
    if failure is not None:
        on = f" on rank {failure.rank}" if run.world_size > 1 else ""
        note = ON_ONE_PROCESS if fails_on_one_process(runs, run) else _precision_note(run, runs, failure)
        summary = f"{label} failed{on} with {failure.headline}"
        return Finding(summary, cause_of(failure, run), step, failure.sentence, note, place=failure.where)
    together = collectives_fault(run)
    if together is not None:
        verb = "hangs" if run.hung else "failed"
        return Finding(
            f"{label} {verb}: {together.summary}", together.cause, together.step, together.value, together.note
        )
    if run.hung or run.timed_out:
        state = "makes no progress" if run.hung else f"was still running after {run.seconds:.0f} s"
        places = "; ".join(f"rank {rank}: {place}" for rank, place in run.stacks.items() if place)
        return Finding(f"{label} {state}", None, step, places or None)
    return Finding(f"{label} failed", None, step, _statuses(run))


def _precision_note(run: Run, runs: Runs, failure: Failure) -> str | None:
    one = runs.get("one")
    if run.name in CONTROLLED and one is not None and one.finished and comes_from_precision(failure):
        return "this run is in double precision, the run on one process that succeeded was not: it may be that alone"
    return None


def _statuses(run: Run) -> str:
    parts = []
    for rank, status in enumerate(run.statuses):
        if not status:  # None: ended by us, after another one had failed
            continue
        if status < 0:
            name = signal.Signals(-status).name if -status in list(signal.Signals) else str(-status)
            parts.append(f"rank {rank} was killed by {name}")
        else:
            parts.append(f"rank {rank} ended with status {status}")
    return "; ".join(parts)
