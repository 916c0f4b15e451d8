"""The runs of the script that a verdict needs, in the order in which each makes the next possible."""

from __future__ import annotations

import importlib
import os
import shlex
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path

from retrofit.verify.processes.interpreters import Interpreter, interpreters
from retrofit.verify.processes.launch import Launch, RunResult, free_port, run_together
from retrofit.verify.processes.progress import Progress
from retrofit.verify.processes.project_copy import copy_project, own_folder
from retrofit.verify.processes.stacks import stack_summary
from retrofit.verify.trace.events import EpochCut, SpawnCall, TraceError
from retrofit.verify.trace.settings import TraceSettings

from .checks.checkpoint.library_order import IN_ORDER, is_of_library
from .checks.checkpoint.resume import resume
from .checks.data.global_batch import is_divided_twice
from .checks.options import AS_IS, FLOAT64, CheckOptions
from .checks.processes.errors import first_failure
from .checks.training.differences import may_be_rounding, tolerance_of
from .checks.training.own_precision import PERTURBED, ROUNDED, averaged_in
from .evidence import RankTrace, Run, load_run
from .own_processes import meets_at_own_port, number_option, spawns, why_not_drawn, why_not_followed, with_number
from .restarts.restart import Restart
from .restarts.resumes import Resumes, on_one_process
from .source.batch_mode import GLOBAL, keeps_batch, steps_of_user_mode
from .source.decisions import decision_tests
from .verdict import FAIL

# What every training imports, torch by itself (dynamo with the first optimizer): once here instead of in each process.
PRELOADED = ("numpy", "torch._dynamo", "torch.distributed", "torch.utils.data")
OF_EVERY_RUN = {"WANDB_MODE": "disabled"}  # scalars are still recorded; nothing is uploaded seven times
SNAPSHOTS = {"many": "snapshot", "alone": "snapshot_alone"}  # what each run leaves after its first epoch
REPLAYS = ("reference", *PERTURBED)
OF_ORIGINAL = ("original", "reload_original", "alone", "alone_resumed")
FIND_LENGTHS = ("original", "one")  # the first runs


@dataclass(frozen=True)
class Plan:
    """What `retrofit verify` was asked to run."""

    script: Path  # absolute
    arguments: list[str]  # of the script, before and after the conversion
    folder: Path  # everything that the runs write
    nproc: int = 2
    steps: int = 20  # batches with an optimizer step per run, half of them per epoch; 0 = all that the script takes
    original: Path | None = None  # absolute
    converted_arguments: list[str] = field(default_factory=list)  # that the original does not know
    batch_flag: str | None = None  # a flag of the script whose value is divided by nproc at world size N
    resume_arguments: list[str] | None = None  # None: found out from the script's own parser
    use_gpus: bool = False
    is_launched: bool = False  # one process has a launcher's variables, too: the script does not run without
    precision: str = FLOAT64  # in which the runs are compared, or AS_IS
    spawns: bool = False  # the script starts its processes itself (mp.spawn)
    number_option: str | None = None  # its option that says how many
    in_turn: bool = False  # the runs are made one after the other: their groups meet at one port
    time_limit_s: float = 600.0
    idle_s: float = 20.0
    project: Path = field(default_factory=Path.cwd)
    module: str = ""  # the script is started as `python -m module`
    start: str = ""  # the folder of the project in which it is started
    # Files that are not in the project so far, or are others there, by their path in it: the original has none of them.
    changes: Mapping[str, bytes] = field(default_factory=dict)
    environ: Mapping[str, str] = field(default_factory=dict)  # of every run
    watched: Mapping[str, Sequence[int]] = field(default_factory=dict)  # lines, by file: whether several processes run


@dataclass
class FinishedRuns:
    """The finished runs by name, and what a reader wants to know about them."""

    by_name: dict[str, Run] = field(default_factory=dict)
    commands: dict[str, str] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)  # why a run was not made
    lengths: dict[str, int] = field(default_factory=dict)  # of cut epochs, where the script asks for them
    interpreters: dict[int, Interpreter] = field(default_factory=dict)  # by the rank that they fork
    kept_batch: str = ""  # what keeps the global batch, where the script as it is started has a larger one


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
    if together or restarts or default:
        text = "one process on the same batches" + (", restarts from the checkpoint" if restarts else "")
        text += f", {plan.nproc} processes as you start them" if default else ""
        _run(plan, runs, progress, text, [*together, *default, *restarts], restarts)
    restarts = resumes.tried(restarts, judged_script(plan))
    if together and plan.precision == AS_IS:
        _run(plan, runs, progress, "one process with other orders and other rounding", list(PERTURBED))
    elif together and may_be_rounding(runs.by_name, tolerance_of(runs.by_name["many"], CheckOptions())):
        _run(plan, runs, progress, "one process on the same batches in another order", ["reordered"])
    if "resumed" in restarts and _lacks_order_of_library(runs.by_name):
        text = "the restart with the order of samples that it has without the stop"
        _run(plan, runs, progress, text, [IN_ORDER], {IN_ORDER: restarts["resumed"]})
    if _is_doubtful(runs.by_name, restarts):
        _resume_alone(plan, runs, progress, restarts)
    return runs


def _run_many(plan: Plan, runs: FinishedRuns, progress: Progress, alone: Sequence[str]) -> tuple[Plan, str | None]:
    """Run the script on several processes, its own where it starts them. Returns how, and why it cannot be judged."""
    text = f"{plan.nproc} processes"
    if runs.by_name["one"].main.first(SpawnCall) is None:
        _run(plan, runs, progress, text, ["many"])
    script = judged_script(plan)
    if not spawns(script, runs.by_name.get("many", runs.by_name["one"])):
        many = runs.by_name["many"]
        return replace(plan, in_turn=meets_at_own_port(runs.by_name["one"], many)), why_not_drawn(many)
    plan = replace(plan, spawns=True, number_option=number_option(runs.by_name["one"]))
    if runs.by_name["one"].main.first(SpawnCall) is not None:
        _run_again(plan, runs, progress, "one process, which the script starts", alone)
    problem = why_not_followed(script, runs.by_name["one"])
    if problem is None:
        _run_again(plan, runs, progress, f"{text}, which the script starts", ["many"])
        problem = why_not_followed(script, runs.by_name["many"])
    in_turn = problem is None and meets_at_own_port(runs.by_name["one"], runs.by_name["many"])
    return replace(plan, in_turn=in_turn), problem


def _run_again(plan: Plan, runs: FinishedRuns, progress: Progress, text: str, names: Sequence[str]) -> None:
    for name in names:
        shutil.rmtree(plan.folder / name, ignore_errors=True)
    shutil.rmtree(plan.folder / SNAPSHOTS["many"], ignore_errors=True)
    _run(plan, runs, progress, text, names)


def _as_started(plan: Plan, runs: FinishedRuns) -> list[str]:
    """Return the run as the user starts the script, where its batch is not the one that is compared."""
    many = runs.by_name["many"]
    project = _project(plan, "many")
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
    return verdict.status == FAIL and is_of_library(verdict.summary, runs["resumed"])


def _resume_alone(plan: Plan, runs: FinishedRuns, progress: Progress, made: Mapping[str, Restart]) -> None:
    """Stop and resume the script on one process, the one before the change if any: what it loses, the change cannot."""
    text = f"the script{' before the change' if plan.original else ''}, stopped and resumed on one process"
    _run(plan, runs, progress, text, ["alone"])
    alone = runs.by_name["alone"]
    parser = runs.by_name["original" if plan.original else "many"]
    restart = on_one_process(plan, alone, parser, plan.folder / SNAPSHOTS["alone"], made)
    if restart is not None:
        _run(plan, runs, progress, text, ["alone_resumed"], {"alone_resumed": restart})


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


def _as_launched() -> dict[str, str]:
    """Return the variables that a launcher gives to a single process."""
    port = str(free_port())
    numbers = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
    return {**numbers, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}


def _run(
    plan: Plan,
    runs: FinishedRuns,
    progress: Progress,
    text: str,
    names: Sequence[str],
    restarts: Mapping[str, Restart] | None = None,
) -> None:
    launches = [
        _launch(
            plan,
            name,
            (restarts or {}).get(name),
            runs,
            averaged_in(runs.by_name["many"]) if name in ROUNDED else "",
        )
        for name in names
    ]
    traces = [plan.folder / name / "rank0.jsonl" for name in names]
    with progress.stage(text, traces, sum(map(_num_steps, launches)) or None) as on_progress:
        results = [
            result
            for group in ([[launch] for launch in launches] if plan.in_turn else [launches])
            for result in run_together(
                group,
                time_limit_s=plan.time_limit_s,
                idle_s=plan.idle_s,
                on_progress=on_progress,
                max_processes=_most_processes(plan),
            )
        ]
    for name, launch, result in zip(names, launches, results):
        runs.by_name[name] = _load(plan, name, result, (restarts or {}).get(name))
        runs.commands[name] = _command(launch)
    if _learn_lengths(runs, names):
        for name in names:
            shutil.rmtree(plan.folder / name)
        _run(plan, runs, progress, text, names, restarts)


def _learn_lengths(runs: FinishedRuns, names: Sequence[str]) -> bool:
    """Take over after how many batches runs have cut epochs, where that was not right. Returns whether it is news.

    A script that fails after a cut may count its batches by itself: its epochs are not cut then.
    """
    new: dict[str, int] = {}
    for run in (runs.by_name[name] for name in names if name in FIND_LENGTHS):
        for event in run.main.of(EpochCut):
            if event.is_last or first_failure(run) is not None:
                new[event.loader] = event.batches if event.is_last else 0
    new = {loader: batches for loader, batches in new.items() if loader not in runs.lengths}
    runs.lengths.update(new)
    return bool(new)


def _num_steps(launch: Launch) -> int:
    """Return how many optimizer steps a run is to make, 0 if that is left to the script."""
    settings = launch.settings[0]
    return 0 if settings.stop_before_first_step else max(0, settings.steps - settings.batches_done)


def _most_processes(plan: Plan) -> int:
    """Return how many processes run at once: one more than there are cores, because ranks wait for each other."""
    return plan.nproc if plan.use_gpus else max(plan.nproc, len(os.sched_getaffinity(0))) + 1


def _load(plan: Plan, name: str, result: RunResult, restart: Restart | None) -> Run:
    project = str(_project(plan, name))
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


def _launch(plan: Plan, name: str, restart: Restart | None, runs: FinishedRuns, averaged_in: str = "") -> Launch:
    project = _project(plan, name)
    if restart:
        source = SNAPSHOTS["alone" if name == "alone_resumed" else "many"]
        shutil.copytree(plan.folder / source, project, symlinks=True)
    else:
        copy_project(plan.project, project, leave_out=[plan.folder])
    is_original = _is_original(plan, name)
    _change(plan, project, is_original)
    world_size = plan.nproc if name in ("many", "resumed", "default", IN_ORDER) else 1
    script = plan.original if is_original and plan.original else plan.script
    arguments = plan.arguments + ([] if is_original else plan.converted_arguments)
    if world_size > 1 and plan.batch_flag and name != "default":
        arguments = divide_flag(arguments, plan.batch_flag, world_size)
    if plan.spawns and plan.number_option and not is_original:
        arguments = with_number(arguments, plan.number_option, world_size)
    environ = {**plan.environ, **OF_EVERY_RUN, **({} if name in ("original", "one", "default") else GLOBAL)}
    if plan.is_launched and world_size == 1:
        environ.update(_as_launched())
    if not plan.use_gpus:
        environ["CUDA_VISIBLE_DEVICES"] = ""
    elif plan.spawns:
        environ["CUDA_VISIBLE_DEVICES"] = _first_gpus(world_size)
    return Launch(
        settings=[
            replace(_settings(plan, name, rank, world_size, restart, averaged_in), lengths=dict(runs.lengths))
            for rank in range(world_size)
        ],
        script=os.path.relpath(script, plan.project),
        argv=arguments + (_from_start(plan, restart) if restart else []),
        environ=environ,
        num_threads=max(1, len(os.sched_getaffinity(0)) // plan.nproc),
        interpreters=runs.interpreters
        if world_size > 1
        else {},  # what one process does is compared bit for bit with rank 0's
        is_launched=not plan.spawns,
    )


def _first_gpus(number: int) -> str:
    """Return the first GPUs of those that are visible: a script that starts a process for each starts as many."""
    visible = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    return ",".join((visible or [str(index) for index in range(number)])[:number])


def _from_start(plan: Plan, restart: Restart) -> list[str]:
    """Return the arguments that restart a script, with the path of the checkpoint as the folder of its start has it."""
    if not plan.start:
        return restart.arguments
    path, folder = restart.checkpoint, os.path.dirname(restart.checkpoint)
    arguments = [argument.replace(path, os.path.relpath(path, plan.start)) for argument in restart.arguments]
    return [os.path.relpath(folder or ".", plan.start) if argument == folder else argument for argument in arguments]


def judged_script(plan: Plan) -> Path:
    """Return the script that is judged, with its changes: in the copy of the run on one process, if that was made."""
    script = _project(plan, "one") / os.path.relpath(plan.script, plan.project)
    return script if script.is_file() else plan.script


def _change(plan: Plan, project: Path, is_original: bool) -> None:
    """Give a copy of the project the changes of the plan; that of the original, the files without them."""
    for name, data in plan.changes.items():
        path, before = project / name, plan.project / name
        own_folder(path.parent, project)
        if path.is_symlink() or path.exists():
            path.unlink()
        if not is_original:
            path.write_bytes(data)
        elif before.is_file():
            shutil.copy2(before, path)


def _settings(
    plan: Plan, name: str, rank: int, world_size: int, restart: Restart | None, averaged_in: str
) -> TraceSettings:
    return TraceSettings(
        folder=str(plan.folder / name),
        project=str(_project(plan, name)),
        start=plan.start,
        module=plan.module if plan.changes or not _is_original(plan, name) else "",
        rank=rank,
        world_size=world_size,
        spawns=plan.spawns and not _is_original(plan, name),
        steps=steps_of_user_mode(plan.steps) if name == "default" else plan.steps,
        finds_lengths=name in FIND_LENGTHS,
        controlled=name not in ("original", "one"),
        replay=_replayed(plan, name, rank, restart),
        reorder=name == "reordered",
        as_is=plan.precision == AS_IS,
        rounding=ROUNDED.index(name) + 1 if name in ROUNDED else 0,
        averaged_in=averaged_in,
        snapshot=str(plan.folder / SNAPSHOTS[name]) if name in SNAPSHOTS else "",
        epochs_done=restart.epochs_done if restart else 0,
        batches_done=restart.batches_done if restart else 0,
        stop_before_first_step=name.startswith("reload"),
        watched={path: list(lines) for path, lines in plan.watched.items()} if name == "many" else {},
        decisions=_decision_tests(_project(plan, "one"), judged_script(plan)) if name in ("many", "reference") else {},
    )


_decision_tests = cache(decision_tests)


def _replayed(plan: Plan, name: str, rank: int, restart: Restart | None) -> list[str]:
    """Return the traces whose batches a run trains on, so that it can be compared where its own are others."""
    if name == "alone_resumed" and restart is not None and restart.epochs_done:
        return [str(plan.folder / "alone" / "rank0.jsonl")]
    if name == IN_ORDER:
        return [str(plan.folder / "many" / f"rank{rank}.jsonl")]
    return [str(plan.folder / "many" / f"rank{r}.jsonl") for r in range(plan.nproc)] if name in REPLAYS else []


def _is_original(plan: Plan, name: str) -> bool:
    return plan.original is not None and name in OF_ORIGINAL


def _project(plan: Plan, name: str) -> Path:
    return plan.folder / name / "project"


def divide_flag(arguments: Sequence[str], flag: str, divisor: int) -> list[str]:
    """Return `arguments` with the whole number after `flag` divided. Raises ValueError if it is not there or odd."""
    result, found = list(arguments), False
    for position, argument in enumerate(result):
        name, equals, value = argument.partition("=")
        if not name.startswith("-") or name.lstrip("-") != flag.lstrip("-"):
            continue
        found = True
        value = value if equals else (result[position + 1] if position + 1 < len(result) else "")
        if not value.isdigit() or int(value) % divisor:
            raise ValueError(
                f"{name} {value or '(nothing)'} cannot be shared by {divisor} processes; use a multiple of {divisor}"
            )
        divided = str(int(value) // divisor)
        result[position if equals else position + 1] = f"{flag}={divided}" if equals else divided
    if not found:
        raise ValueError(
            f"--batch-flag {flag}: no such flag among the script's arguments; add it after --, with its value"
        )
    return result


def _command(launch: Launch) -> str:
    environ = "".join(f"{key}={shlex.quote(value)} " for key, value in launch.environ.items())
    many = len(launch.settings)
    program = "python" if many == 1 or not launch.is_launched else f"torchrun --standalone --nproc_per_node={many}"
    module = launch.settings[0].module
    script = ["-m", module] if module else [launch.script]
    return f"{environ}{program} {shlex.join([*script, *launch.argv])}"
