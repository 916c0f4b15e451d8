"""The runs of the script that a verdict needs, in the order in which each makes the next possible."""

from __future__ import annotations

import importlib
import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

from retrofit.verify.checks.checkpoint.library_order import IN_ORDER, is_of_library
from retrofit.verify.checks.checkpoint.one_process.same_checkpoint import ON_ONE
from retrofit.verify.checks.checkpoint.resume import forgets_as_before, forgets_order_as_before, resume
from retrofit.verify.checks.data.global_batch import is_divided_twice
from retrofit.verify.checks.options import AS_IS, CheckOptions
from retrofit.verify.checks.processes.errors import first_failure
from retrofit.verify.checks.processes.own_draws import OWN_DRAWS, draws_apart
from retrofit.verify.checks.training.differences import may_be_rounding, tolerance_of
from retrofit.verify.checks.training.rounding.own_precision import PERTURBED
from retrofit.verify.evidence import RankTrace, Run, load_run
from retrofit.verify.processes.interpreters import interpreters
from retrofit.verify.processes.launch import RunResult, run_together
from retrofit.verify.processes.progress import Progress
from retrofit.verify.processes.stacks import stack_summary
from retrofit.verify.restarts.restart import Restart
from retrofit.verify.restarts.resumes import Resumes, on_one_process
from retrofit.verify.source.batch_mode import keeps_batch
from retrofit.verify.source.distribution import is_converted
from retrofit.verify.trace.events import EpochCut, EpochKept, SpawnCall, TraceError
from retrofit.verify.trace.settings import UNCUT, CutEpoch
from retrofit.verify.verdict import FAIL

from .launches import FIND_LENGTHS, SNAPSHOTS, command_of, launch, num_steps
from .own_processes import meets_at_own_port, number_options, spawns, why_not_drawn, why_not_followed
from .plan import FinishedRuns, Plan

# What every training imports, torch by itself (dynamo with the first optimizer): once here instead of in each process.
PRELOADED = ("numpy", "torch._dynamo", "torch.distributed", "torch.utils.data")


def run_all(plan: Plan, progress: Progress) -> FinishedRuns:
    """Run the script in every way that the checks compare. Returns whatever could be run."""
    with interpreters(plan.nproc, PRELOADED, plan.environ) as started:
        return _run_all(plan, progress, FinishedRuns(interpreters=started))


def _run_all(plan: Plan, progress: Progress, runs: FinishedRuns) -> FinishedRuns:
    for name in PRELOADED:
        with suppress(ImportError):  # numpy is optional
            importlib.import_module(name)
    alone = ["one"] if plan.original is None else ["original", "one"]
    what = "as it is" if plan.original is None else "the original and the retrofitted script"
    _run(plan, runs, progress, f"one process, {what}", alone)
    if plan.original is None and _may_need_launcher(runs.by_name["one"]):
        plan = _launched(plan, runs, progress, f"one process, {what}, with a launcher's variables", alone)
    plan, problem = _run_many(plan, runs, progress, alone)
    if plan.batch_flag and problem is None and is_divided_twice(runs.by_name["many"], runs.by_name["one"]):
        text = f"{plan.nproc} processes, without --batch-flag: the script divides its batch itself"
        plan = replace(plan, batch_flag=None)
        _run_again(plan, runs, progress, text, ["many"])
    if problem is not None:
        runs.by_name["many"] = _left_out(plan, problem)
        runs.commands.setdefault("many", "")
        return runs
    resumes = Resumes(plan, runs, plan.folder / SNAPSHOTS["many"], partial(_run, plan, runs, progress))
    restarts = resumes.sure()
    together = ["reference"] if all(rank.training for rank in runs.by_name["many"].ranks) else []
    default = _as_started(plan, runs)
    own = [OWN_DRAWS] if runs.by_name["many"].finished and draws_apart(runs.by_name["many"]) else []
    if together or restarts or default or own:
        text = "one process on the same batches" + (", restarts from the checkpoint" if restarts else "")
        text += f", {plan.nproc} processes as you start them" if default else ""
        text += f", {plan.nproc} processes with random numbers of their own" if own else ""
        _run(plan, runs, progress, text, [*together, *default, *own, *restarts], restarts)
    restarts = resumes.tried(restarts, plan.judged_script)
    if together and plan.precision == AS_IS:
        _run(plan, runs, progress, "one process with other orders and other rounding", list(PERTURBED))
    elif together and may_be_rounding(runs.by_name, tolerance_of(runs.by_name["many"], CheckOptions())):
        _run(plan, runs, progress, "one process on the same batches in another order", ["reordered"])
    if _lacks_order_of_library(runs.by_name):
        _resume_in_order(plan, runs, progress, restarts)
    if _is_doubtful(runs.by_name, restarts):
        _resume_alone(plan, runs, progress, restarts)
        verdict = resume(runs.by_name, CheckOptions(is_converted=_is_converted(plan)))
        if forgets_order_as_before(verdict):
            _resume_in_order(plan, runs, progress, restarts)
        if forgets_as_before(verdict):
            _resume_on_one(plan, runs, progress, restarts)
    return runs


def _run_many(plan: Plan, runs: FinishedRuns, progress: Progress, alone: Sequence[str]) -> tuple[Plan, str | None]:
    """Run the script on several processes, its own where it starts them. Returns how, and why it cannot be judged."""
    text = f"{plan.nproc} processes"
    if runs.by_name["one"].main.first(SpawnCall) is None:
        _run(plan, runs, progress, text, ["many"])
    script = plan.judged_script
    if not spawns(script, runs.by_name.get("many", runs.by_name["one"])):
        many = runs.by_name["many"]
        return replace(plan, in_turn=meets_at_own_port(runs.by_name["one"], many)), why_not_drawn(many)
    return _run_started(replace(plan, spawns=True), runs, progress, alone)


def _run_started(plan: Plan, runs: FinishedRuns, progress: Progress, alone: Sequence[str]) -> tuple[Plan, str | None]:
    """Run a script that starts its processes, first as many as there are GPUs, then as its options say how many."""
    script, options, problem = plan.judged_script, number_options(runs.by_name["one"]), None
    starts_one = runs.by_name["one"].main.first(SpawnCall) is not None
    for option in (None, *options):
        plan = replace(plan, number_option=option)
        if starts_one:
            _run_again(plan, runs, progress, "one process, which the script starts", alone)
        problem = why_not_followed(script, runs.by_name["one"])
        if problem is None:
            _run_again(plan, runs, progress, f"{plan.nproc} processes, which the script starts", ["many"])
            problem = why_not_followed(script, runs.by_name["many"])
        if problem is None:
            return replace(plan, in_turn=meets_at_own_port(runs.by_name["one"], runs.by_name["many"])), None
    return plan, problem


def _run_again(plan: Plan, runs: FinishedRuns, progress: Progress, text: str, names: Sequence[str]) -> None:
    for name in names:
        shutil.rmtree(plan.folder / name, ignore_errors=True)
    shutil.rmtree(plan.folder / SNAPSHOTS["many"], ignore_errors=True)
    _run(plan, runs, progress, text, names)


def _as_started(plan: Plan, runs: FinishedRuns) -> list[str]:
    """Return the run as the user starts the script, where its batch is not the one that is compared."""
    many = runs.by_name["many"]
    project = plan.project_of("many")
    kept = keeps_batch(plan.batch_flag, plan.nproc, project, [*plan.arguments, *plan.converted_arguments], plan.environ)
    if not kept:
        return []
    runs.kept_batch = kept
    if many.finished and all(rank.training for rank in many.ranks):
        return ["default"]
    runs.reasons["default"] = "not run: the script did not train to its end with the global batch kept (see completes)"
    return []


def _is_doubtful(runs: Mapping[str, Run], restarts: Mapping[str, Restart]) -> bool:
    """Return whether a restart fails, or continues another training."""
    is_another = "resumed" in restarts and resume(runs, CheckOptions()).status == FAIL
    return is_another or any(not runs[name].finished for name in restarts)


def _lacks_order_of_library(runs: Mapping[str, Run]) -> bool:
    """Return whether a restart fails by the order of samples alone, which its library does not restore."""
    verdict = resume(runs, CheckOptions())
    return (
        "resumed" in runs and verdict.status == FAIL and is_of_library(verdict.summary, runs["many"], runs["resumed"])
    )


def _is_converted(plan: Plan) -> bool:
    return is_converted(plan.judged_script, plan.project_of("one"))


def _resume_in_order(plan: Plan, runs: FinishedRuns, progress: Progress, made: Mapping[str, Restart]) -> None:
    """Resume with the samples of the run without the stop: so what else was not restored shows."""
    text = "the restart with the order of samples that it has without the stop"
    _run(plan, runs, progress, text, [IN_ORDER], {IN_ORDER: made["resumed"]})


def _resume_alone(plan: Plan, runs: FinishedRuns, progress: Progress, made: Mapping[str, Restart]) -> None:
    """Stop and resume the script on one process, the one before the change if any: what it loses, the change cannot."""
    text = f"the script{' before the change' if plan.original else ''}, stopped and resumed on one process"
    _run(plan, runs, progress, text, ["alone"])
    alone = runs.by_name["alone"]
    parser = runs.by_name["original" if plan.original else "many"]
    restart = on_one_process(plan, alone, parser, plan.folder / SNAPSHOTS["alone"], made)
    if restart is not None:
        _run(plan, runs, progress, text, ["alone_resumed"], {"alone_resumed": restart})


def _resume_on_one(plan: Plan, runs: FinishedRuns, progress: Progress, made: Mapping[str, Restart]) -> None:
    """Resume on one process from the checkpoint of several, on their batches: so what the change has lost shows."""
    restart = made.get("reload_original" if plan.original else "reload")
    if restart is not None and runs.by_name["resumed"].num_steps:
        text = "the restart on one process, on the same batches"
        _run(plan, runs, progress, text, [ON_ONE], {ON_ONE: restart})


def _left_out(plan: Plan, reason: str) -> Run:
    """Return the run on several processes of a script that starts them itself: nothing can be said of it."""
    ranks = [RankTrace(rank, []) for rank in range(plan.nproc)]
    return Run("many", plan.nproc, ranks, [0] * plan.nproc, left_out=reason)


def _may_need_launcher(one: Run) -> bool:
    """Return whether a script trained nothing on one process: with an error, or a message that torchrun is needed."""
    is_explained = one.hung or one.timed_out or one.main.first(SpawnCall) or one.main.first(TraceError)
    return not one.num_steps and not is_explained


def _launched(plan: Plan, runs: FinishedRuns, progress: Progress, text: str, names: Sequence[str]) -> Plan:
    """Give a script that trained nothing on one process the variables of a launcher, which it may need.

    Returns the plan of the further runs; where nothing comes of it, the first run stays as it was.
    """
    before, command = runs.by_name["one"], runs.commands["one"]
    shutil.rmtree(plan.folder / "one")
    launched = replace(plan, is_launched=True)
    _run(launched, runs, progress, text, names)
    after = runs.by_name["one"]
    if after.num_steps or (after.finished and not before.finished):
        return launched
    runs.by_name["one"], runs.commands["one"] = before, command
    return plan


def _run(
    plan: Plan,
    runs: FinishedRuns,
    progress: Progress,
    text: str,
    names: Sequence[str],
    restarts: Mapping[str, Restart] | None = None,
) -> None:
    launches = [launch(plan, name, (restarts or {}).get(name), runs) for name in names]
    traces = [plan.folder / name / "rank0.jsonl" for name in names]
    with progress.stage(text, traces, sum(map(num_steps, launches)) or None) as on_progress:
        results = [
            result
            for group in ([[launched] for launched in launches] if plan.in_turn else [launches])
            for result in run_together(
                group,
                time_limit_s=plan.time_limit_s,
                idle_s=plan.idle_s,
                on_progress=on_progress,
                max_processes=_most_processes(plan),
            )
        ]
    for name, launched, result in zip(names, launches, results):
        runs.by_name[name] = _load(plan, name, result, (restarts or {}).get(name))
        runs.commands[name] = command_of(launched)
    if _learn_lengths(runs, names):
        for name in names:
            shutil.rmtree(plan.folder / name)
        _run(plan, runs, progress, text, names, restarts)


def _learn_lengths(runs: FinishedRuns, names: Sequence[str]) -> bool:
    """Take over after how many batches runs have cut epochs, where that was not right. Returns whether it is news.

    A script that fails after a cut may count its batches by itself: its epochs are not cut then.
    """
    new: dict[str, CutEpoch] = {}
    for run in (runs.by_name[name] for name in names if name in FIND_LENGTHS):
        for event in run.main.of(EpochCut):
            if event.is_last or first_failure(run) is not None:
                new[event.loader] = CutEpoch(event.batches if event.is_last else 0, event.whole)
        runs.lengths.update({event.loader: CutEpoch(UNCUT) for event in run.main.of(EpochKept)})
    new = {loader: cut for loader, cut in new.items() if loader not in runs.lengths}
    runs.lengths.update(new)
    return bool(new)


def _most_processes(plan: Plan) -> int:
    """Return how many processes run at once: one more than there are cores, because ranks wait for each other."""
    return plan.nproc if plan.use_gpus else max(plan.nproc, len(os.sched_getaffinity(0))) + 1


def _load(plan: Plan, name: str, result: RunResult, restart: Restart | None) -> Run:
    project = str(plan.project_of(name))
    return load_run(
        name,
        plan.folder / name,
        len(result.statuses),
        statuses=result.statuses,
        hung=result.hung,
        timed_out=result.timed_out,
        stacks={rank: stack_summary(text, project) for rank, text in result.stacks.items()},
        seconds=result.seconds,
        steps_before=restart.steps_done if restart else None,
    )
