"""The report of a verification: its curves, the coverage of the data, the runs, the machine, what was controlled."""

from __future__ import annotations

import math
import os
import platform
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from retrofit import __version__
from retrofit.verify.checks.options import AS_IS, CheckOptions
from retrofit.verify.checks.output.own_figures import own_figures
from retrofit.verify.checks.processes.default_mode import is_same_batch
from retrofit.verify.checks.training.differences import tolerance_of
from retrofit.verify.evidence import Run, relative_difference
from retrofit.verify.runs.plan import FinishedRuns, Plan
from retrofit.verify.source.distribution import dialect_of
from retrofit.verify.trace.events import LineRun, OptimizerStep
from retrofit.verify.verdict import PASS, EpochCoverage, Report, RunRecord, Verdict, overall_status

CONTROLS = (
    "Everything runs in float64: the rounding of float32 grows tenfold per step in some networks and hides an error. "
    "Mixed precision leaves float64 alone, so it is off. ReLU lets no gradient through where a zero is "
    "rounded up.",
    "A sample's augmentation draws from a stream of its own, and so does each row of a batch (dropout, noise): neither "
    "depends on the rank.",
    "BatchNorm takes its statistics over all ranks, whether the script does so or not; if it does not, the check "
    "`batchnorm` says so.",
    "One process trains on the batches that the processes drew together, so that the numbers can be compared even "
    "where the sampling differs.",
    "What differs by little is compared with one process that has the samples of each batch in another order: the "
    "rounding that a network multiplies does not count.",
    "Each process has a hash seed of its own, and a clock that is 1.5 s later than that of the one before: the order "
    "of a set, or a name by the time, is not the same by chance.",
    "Loader workers run inside the process, torch.compile is off, deterministic algorithms are on.",
)
CONTROLS_AS_IS = (
    "Everything runs in the script's own precision and under torch.compile. A difference counts where it is larger "
    "than rounding: 5 times the largest difference so far of one process from itself, with the samples of each batch "
    "in another order, and twice with random errors of half a unit in the last place in products and sums.",
    "A compiled graph draws by torch's own operators; what it computes in one kernel is neither seen nor made "
    "comparable: BatchNorm of one rank's share, losses that couple samples.",
    "Printed and logged figures are not judged, and steps from the first on that a gradient scaler leaves out in one "
    "run alone.",
    *CONTROLS[1:4],
    *CONTROLS[5:6],
    "Loader workers run inside the process, deterministic algorithms are on.",
)
CONTROLS_OF_ORIGINAL = (
    "The original and the retrofitted script in one process are compared as they are, in their own precision."
)


def build_report(
    plan: Plan, runs: FinishedRuns, verdicts: Sequence[Verdict], options: CheckOptions, seconds: float
) -> Report:
    """Return everything that terminal, JSON and HTML page show."""
    tolerance = tolerance_of(runs.by_name["many"], options)
    return Report(
        script=os.path.relpath(plan.script, plan.project),
        module=plan.module,
        arguments=[*plan.arguments, *plan.converted_arguments],
        world_size=plan.nproc,
        verdicts=verdicts,
        curves=curves(runs, tolerance),
        coverage=coverage(runs.by_name["many"]),
        runs=[_record(runs, name) for name in runs.by_name],
        environment=_environment(plan),
        controls=_controls(plan),
        seconds=seconds,
        lines_run=sorted({(e.path, e.line) for rank in runs.by_name["many"].ranks for e in rank.of(LineRun)}),
        dialect=dialect_of(plan.judged_script, plan.project_of("one")),
        made=made_from(plan.project),
        precision=plan.precision,
        kept_batch="" if is_same_batch(runs.by_name) else runs.kept_batch,
        own_figures=[*own_figures(runs.by_name, tolerance)] if overall_status(verdicts) == PASS else [],
    )


def _controls(plan: Plan) -> list[str]:
    of_runs = CONTROLS_AS_IS if plan.precision == AS_IS else CONTROLS
    return [*of_runs, *([CONTROLS_OF_ORIGINAL] if plan.original else [])]


def curves(runs: FinishedRuns, tolerance: float) -> dict[str, Any]:
    """Return the curves of one process and of N, per optimizer step."""
    many, one = runs.by_name.get("many"), runs.by_name.get("reference")
    steps_n = [rank.steps for rank in many.ranks] if many else []
    steps_1 = one.main.steps if one else []
    shortest = min((len(steps) for steps in steps_n), default=0)
    loss_n = [_mean([sum(steps[i].losses) for steps in steps_n]) for i in range(shortest)]
    loss_1 = [sum(step.losses) for step in steps_1]
    return {
        "loss_1": loss_1,
        "loss_n": loss_n,
        "difference": [relative_difference(a, b) for a, b in zip(loss_n, loss_1)],
        "parameter_difference": [parameter_difference(a, b) for a, b in zip(steps_n[0] if steps_n else [], steps_1)],
        "lr_1": [step.lr[0] for step in steps_1 if step.lr],
        "lr_n": [step.lr[0] for step in steps_n[0] if step.lr] if steps_n else [],
        "tolerance": tolerance,
    }


def parameter_difference(a: OptimizerStep, b: OptimizerStep) -> float:
    """Return the distance of two steps' parameters, estimated from their projections, relative to their norm."""
    apart = [x[1] - y[1] for x, y in zip(a.parameters, b.parameters)]
    distance = sum(x * x for x in apart)  # a power of a large number raises an error, a product is infinite
    norm = sum(y[0] * y[0] for y in b.parameters)
    if not math.isfinite(norm):
        return 0.0 if distance == 0.0 else math.inf
    return math.sqrt(distance / norm) if norm else 0.0


def coverage(many: Run) -> list[EpochCoverage]:
    """Return which rank drew which sample in every training epoch of the N processes."""
    epochs: dict[int, EpochCoverage] = {}
    for number, rank in enumerate(many.ranks):
        for ordinal, iteration in enumerate(rank.epochs):
            samples = sorted(sample for sample in iteration.drawn if isinstance(sample, int))
            num_samples = max([iteration.length or 0, *(sample + 1 for sample in samples[-1:])])
            epochs.setdefault(ordinal, EpochCoverage(num_samples, {})).rank_of_sample[number] = samples
    return [epochs[ordinal] for ordinal in sorted(epochs) if epochs[ordinal].num_samples]


def _record(runs: FinishedRuns, name: str) -> RunRecord:
    run = runs.by_name[name]
    steps = len(run.main.steps)
    bad = [f"rank {rank}: {status}" for rank, status in enumerate(run.statuses) if status != 0]
    if run.hung:
        status = "hung"
    elif bad:
        status = "failed (" + ", ".join(bad) + ")"
    else:
        status = f"finished, {steps} steps"
    return RunRecord(name, run.world_size, run.seconds, status, runs.commands[name])


def _environment(plan: Plan) -> dict[str, object]:
    import torch

    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "device": "GPU" if plan.use_gpus else "CPU",
        "cores": len(os.sched_getaffinity(0)),
        "system": platform.platform(),
    }


def made_from(project: Path) -> dict[str, str]:
    """Return when the report was made, by which version of the kit, and of which commit of the project."""
    now = datetime.now().astimezone().isoformat(sep=" ", timespec="seconds")
    made = {"Date": now, "Version": f"retrofit {__version__}"}
    git = ["git", "-C", str(project), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    with suppress(OSError):
        result = subprocess.run(git, capture_output=True, text=True, check=False)
        if result.returncode == 0:
            made["Commit"] = result.stdout.strip()
    return made


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
