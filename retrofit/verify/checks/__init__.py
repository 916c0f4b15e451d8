"""The checks of `retrofit verify`: each looks at the evidence of all runs and returns one verdict.

A check passes on evidence only. Where there is none it is NOT APPLICABLE and says why; what another check has found
already is named there, and not found again under another name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from retrofit.verify.evidence import Runs
from retrofit.verify.verdict import ACCEPTED, FAIL, Verdict

from .agreement import ranks_agree
from .batches import global_batch, random_streams
from .checkpoint import checkpoint
from .collectives import collectives
from .completion import completes
from .devices import determinism, devices
from .evaluation import evaluation
from .launch import launch
from .metrics import logs, metrics
from .model import batchnorm, communication
from .numbers import gradients, initial_state, loss, parameters
from .options import CheckOptions
from .original import original
from .resume import resume
from .schedule import lr
from .shards import reshuffle, shards
from .split import split
from .writers import single_writer

__all__ = ["CHECKS", "CheckOptions", "run_checks"]

Check = Callable[[Runs, CheckOptions], Verdict]

# In reading order: does it run, does it draw the same data, compute the same, report the same, leave the same behind.
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
    "evaluation": evaluation,
    "metrics": metrics,
    "logs": logs,
    "single_writer": single_writer,
    "checkpoint": checkpoint,
    "resume": resume,
    "devices": devices,
    "determinism": determinism,
}


def run_checks(runs: Runs, options: CheckOptions | None = None) -> list[Verdict]:
    """Return the verdicts of all checks, in reading order; a FAIL that `options.accept` names becomes ACCEPTED.

    Raises ValueError for a name in `options.accept` that is no check.
    """
    options = options or CheckOptions()
    unknown = sorted(options.accept - set(CHECKS))
    if unknown:
        raise ValueError(f"there is no check {', '.join(unknown)}; the checks are: {', '.join(CHECKS)}")
    verdicts = [check(runs, options) for check in CHECKS.values()]
    return [
        replace(verdict, status=ACCEPTED) if verdict.status == FAIL and verdict.check in options.accept else verdict
        for verdict in verdicts
    ]
