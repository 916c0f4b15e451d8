"""The checks of `retrofit verify`: each looks at the evidence of all runs and returns one verdict.

A check passes on evidence only. Where there is none it is NOT APPLICABLE and says why; what another check has found
already is named there, and not found again under another name.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import replace

from retrofit.verify.checks.checkpoint.checkpoint import checkpoint
from retrofit.verify.checks.checkpoint.resume import resume
from retrofit.verify.checks.data.evaluation import evaluation
from retrofit.verify.checks.data.global_batch import global_batch
from retrofit.verify.checks.data.random_streams import random_streams
from retrofit.verify.checks.data.reshuffle import reshuffle
from retrofit.verify.checks.data.shards import shards
from retrofit.verify.checks.data.split import split
from retrofit.verify.checks.output.metrics import logs, metrics
from retrofit.verify.checks.output.single_writer import single_writer
from retrofit.verify.checks.processes.collectives import collectives
from retrofit.verify.checks.processes.completion import completes
from retrofit.verify.checks.processes.default_mode import default_mode
from retrofit.verify.checks.processes.devices import devices
from retrofit.verify.checks.processes.launch import launch
from retrofit.verify.checks.training.batchnorm import batchnorm
from retrofit.verify.checks.training.communication import communication
from retrofit.verify.checks.training.decisions import decisions
from retrofit.verify.checks.training.determinism import determinism
from retrofit.verify.checks.training.ranks_agree import ranks_agree
from retrofit.verify.checks.training.rates.learning_rate import lr
from retrofit.verify.checks.training.steps import gradients, initial_state, loss, parameters
from retrofit.verify.evidence import Runs
from retrofit.verify.trace.events import StateBeforeStep, TraceError
from retrofit.verify.verdict import ACCEPTED, FAIL, Verdict, internal_error, not_applicable

from .finding import LABELS
from .options import AS_IS, IN_FLOAT64, LEFT_OUT, CheckOptions
from .original import original

__all__ = ["CHECKS", "CheckOptions", "run_checks"]

Check = Callable[[Runs, CheckOptions], Verdict]

# In reading order: does it run, does it draw the same data, compute the same, report the same, write the same files.
CHECKS: dict[str, Check] = {
    "original": original,
    "launch": launch,
    "completes": completes,
    "collectives": collectives,
    "split": split,
    "shards": shards,
    "reshuffle": reshuffle,
    "global_batch": global_batch,
    "random_streams": random_streams,
    "initial_state": initial_state,
    "loss": loss,
    "gradients": gradients,
    "ranks_agree": ranks_agree,
    "parameters": parameters,
    "lr": lr,
    "batchnorm": batchnorm,
    "communication": communication,
    "decisions": decisions,
    "evaluation": evaluation,
    "metrics": metrics,
    "logs": logs,
    "single_writer": single_writer,
    "checkpoint": checkpoint,
    "resume": resume,
    "default_mode": default_mode,
    "devices": devices,
    "determinism": determinism,
}

OF_FIGURES = frozenset({"metrics", "logs"})  # of what is printed and logged
OF_STEPS = frozenset({"communication", "lr"})  # of each optimizer step: a gradient scaler leaves some out


def _left_to_float64(runs: Runs) -> dict[str, str]:
    """Return the checks that cannot fail in the script's own precision, each with the reason."""
    traces = [rank for run in runs.values() for rank in run.ranks]
    scales = any("Scaler" in event.name for rank in traces for event in rank.of(StateBeforeStep))
    return {**dict.fromkeys(OF_FIGURES, IN_FLOAT64), **dict.fromkeys(OF_STEPS if scales else (), LEFT_OUT)}


def run_checks(runs: Runs, options: CheckOptions | None = None) -> list[Verdict]:
    """Return the verdicts of all checks, in reading order; a FAIL that `options.accept` names becomes ACCEPTED.

    Raises ValueError for a name in `options.accept` that is not a check.
    """
    options = options or CheckOptions()
    unknown = sorted(options.accept - set(CHECKS))
    if unknown:
        raise ValueError(f"there is no check {', '.join(unknown)}; the checks are: {', '.join(CHECKS)}")
    verdicts = [_made(name, runs, options) for name in CHECKS]
    verdicts += _errors_of_the_trace(runs)
    return [
        replace(verdict, status=ACCEPTED) if verdict.status == FAIL and verdict.check in options.accept else verdict
        for verdict in verdicts
    ]


def _made(name: str, runs: Runs, options: CheckOptions) -> Verdict:
    """Return the verdict of a check, INTERNAL_ERROR where the check itself fails."""
    try:
        verdict = CHECKS[name](runs, options)
        if options.precision == AS_IS and verdict.status == FAIL and name in _left_to_float64(runs):
            return not_applicable(name, verdict.title, _left_to_float64(runs)[name], verdict.summary)
        return verdict
    except Exception as error:
        text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        return internal_error(name, f"the check {name} failed", f"{type(error).__name__}: {error}", text)


def _errors_of_the_trace(runs: Runs) -> list[Verdict]:
    """Return an INTERNAL_ERROR for what failed in the tracer, in the first run in which something did."""
    for run in runs.values():
        for rank in run.ranks:
            for event in rank.of(TraceError):
                error = event.error
                where = f"{LABELS.get(run.name, run.name)}, rank {rank.rank}"
                summary = f"the tracer failed at {error.where} ({where})"
                return [internal_error("trace", summary, f"{error.type}: {error.message}", error.traceback)]
    return []
