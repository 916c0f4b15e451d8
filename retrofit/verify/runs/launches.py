"""The launch of each run: its copy of the project, its arguments, variables and settings of the trace."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from retrofit.verify.checks.checkpoint.library_order import IN_ORDER
from retrofit.verify.checks.checkpoint.one_process.same_checkpoint import LOADED, LOADED_ON_ONE, ON_ONE
from retrofit.verify.checks.options import AS_IS
from retrofit.verify.checks.processes.own_draws import OWN_DRAWS
from retrofit.verify.checks.training.rounding.own_precision import PERTURBED, ROUNDED, averaged_in
from retrofit.verify.processes.launch import Launch, free_port
from retrofit.verify.processes.project_copy import copy_project, own_folder
from retrofit.verify.restarts.restart import Restart
from retrofit.verify.source.batch_mode import GLOBAL, steps_of_user_mode
from retrofit.verify.source.decisions import decision_tests
from retrofit.verify.trace.settings import DecisionTest, TraceSettings

from .fabric_run import as_fabric_run
from .own_processes import with_number
from .plan import FinishedRuns, Plan

OF_EVERY_RUN = {"WANDB_MODE": "disabled"}  # scalars are still recorded; nothing is uploaded seven times
# Accelerate distributes over GPUs alone, unless `accelerate launch --cpu` has said otherwise with this variable.
WITHOUT_GPUS = {"CUDA_VISIBLE_DEVICES": "", "ACCELERATE_USE_CPU": "true"}
# Of the runtime: how processes find each other, which differs in each run, and what the runs are told to differ in.
NOT_OF_THE_TRAINING = {
    f"RETROFIT_{name}"
    for name in (
        "DISTRIBUTED",
        "LOCAL_RANK",
        "DIST_URL",
        "DIST_BACKEND",
        "DIST_TIMEOUT",
        "BATCH",
        "CONSISTENCY",
        "WHY",
        "WHY_FOLDER",
    )
}
SNAPSHOTS = {"many": "snapshot", "alone": "snapshot_alone"}  # what each run leaves after its first epoch
ON_SEVERAL = ("many", "resumed", "default", IN_ORDER, LOADED, OWN_DRAWS)
REPLAYS = ("reference", *PERTURBED)
FIND_LENGTHS = ("original", "one")  # the first runs
SHOW_DECISIONS = ("many", "reference", "resumed", IN_ORDER, "alone", "alone_resumed", ON_ONE, LOADED, LOADED_ON_ONE)


def launch(plan: Plan, name: str, restart: Restart | None, runs: FinishedRuns) -> Launch:
    """Make the copy of the project that a run needs, and return how the run is started."""
    project = plan.project_of(name)
    if restart:
        source = SNAPSHOTS["alone" if name == "alone_resumed" else "many"]
        shutil.copytree(plan.folder / source, project, symlinks=True)
    else:
        copy_project(plan.project, project, leave_out=[plan.folder])
    is_original = plan.is_of_original(name)
    _change(plan, project, is_original)
    world_size = plan.nproc if name in ON_SEVERAL else 1
    script = plan.original if is_original and plan.original else plan.script
    arguments = plan.arguments + ([] if is_original else plan.converted_arguments)
    if world_size > 1 and plan.batch_flag and name != "default":
        arguments = divide_flag(arguments, plan.batch_flag, world_size)
    if plan.spawns and plan.number_option and not is_original:
        arguments = with_number(arguments, plan.number_option, world_size)
    chosen = {**options_in_environment(os.environ), **plan.environ}
    environ = {**chosen, **OF_EVERY_RUN, **({} if name in ("original", "one", "default") else GLOBAL)}
    if plan.is_launched and world_size == 1:
        environ.update(_as_launched())
    environ.update(as_fabric_run(script, plan.project, world_size))
    if not plan.use_gpus:
        environ.update(WITHOUT_GPUS)
    elif plan.spawns:
        environ["CUDA_VISIBLE_DEVICES"] = _first_gpus(world_size)
    return Launch(
        settings=[_settings(plan, runs, name, rank, world_size, restart) for rank in range(world_size)],
        script=os.path.relpath(script, plan.project),
        argv=arguments + (_from_start(plan, restart) if restart else []),
        environ=environ,
        num_threads=max(1, len(os.sched_getaffinity(0)) // plan.nproc),
        # What one process does is compared bit for bit with rank 0's.
        interpreters=runs.interpreters if world_size > 1 else {},
        is_launched=not plan.spawns,
    )


def options_in_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the options of the training that the user has set for the runtime: RETROFIT_STRATEGY and the like."""
    return {
        name: value
        for name, value in environ.items()
        if name.startswith("RETROFIT_") and name not in NOT_OF_THE_TRAINING
    }


def _settings(
    plan: Plan, runs: FinishedRuns, name: str, rank: int, world_size: int, restart: Restart | None
) -> TraceSettings:
    return TraceSettings(
        folder=str(plan.folder / name),
        project=str(plan.project_of(name)),
        start=plan.start,
        module=plan.module if plan.changes or not plan.is_of_original(name) else "",
        rank=rank,
        world_size=world_size,
        spawns=plan.spawns and not plan.is_of_original(name),
        steps=steps_of_user_mode(plan.steps) if name == "default" else plan.steps,
        lengths=dict(runs.lengths),
        finds_lengths=name in FIND_LENGTHS,
        controlled=name not in ("original", "one"),
        replay=_replayed(plan, name, rank, restart),
        reorder=name == "reordered",
        as_is=plan.precision == AS_IS,
        own_draws=name == OWN_DRAWS,
        rounding=ROUNDED.index(name) + 1 if name in ROUNDED else 0,
        averaged_in=averaged_in(runs.by_name["many"]) if name in ROUNDED else "",
        snapshot=str(plan.folder / SNAPSHOTS[name]) if name in SNAPSHOTS else "",
        epochs_done=restart.epochs_done if restart else 0,
        batches_done=restart.batches_done if restart else 0,
        stop_before_first_step=name.startswith("reload"),
        watched={path: list(lines) for path, lines in plan.watched.items()} if name == "many" else {},
        decisions=_decisions(plan, name) if name in SHOW_DECISIONS else {},
    )


def _decisions(plan: Plan, name: str) -> dict[str, list[DecisionTest]]:
    if plan.original is not None and plan.is_of_original(name):
        return _decision_tests(plan.project, plan.original)
    return _decision_tests(plan.project_of("one"), plan.judged_script)


_decision_tests = cache(decision_tests)


def _replayed(plan: Plan, name: str, rank: int, restart: Restart | None) -> list[str]:
    """Return the traces whose batches a run trains on, so that it can be compared where its own are others."""
    if name == "alone_resumed" and restart is not None and restart.epochs_done:
        return [str(plan.folder / "alone" / "rank0.jsonl")]
    if name == IN_ORDER:
        return [str(plan.folder / "many" / f"rank{rank}.jsonl")]
    replayed = {**dict.fromkeys(REPLAYS, "many"), ON_ONE: "resumed", LOADED_ON_ONE: LOADED}.get(name)
    return [str(plan.folder / replayed / f"rank{r}.jsonl") for r in range(plan.nproc)] if replayed else []


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


def _from_start(plan: Plan, restart: Restart) -> list[str]:
    """Return the arguments that restart a script, with the path of the checkpoint as the folder of its start has it."""
    if not plan.start:
        return restart.arguments
    path, folder = restart.checkpoint, os.path.dirname(restart.checkpoint)
    arguments = [argument.replace(path, os.path.relpath(path, plan.start)) for argument in restart.arguments]
    return [os.path.relpath(folder or ".", plan.start) if argument == folder else argument for argument in arguments]


def _as_launched() -> dict[str, str]:
    """Return the variables that a launcher gives to a single process."""
    port = str(free_port())
    numbers = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
    return {**numbers, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}


def _first_gpus(number: int) -> str:
    """Return the first GPUs of those that are visible: a script that starts a process for each starts as many."""
    visible = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    return ",".join((visible or [str(index) for index in range(number)])[:number])


def divide_flag(arguments: Sequence[str], flag: str, divisor: int) -> list[str]:
    """Return `arguments` with the whole number after `flag` divided. Raises ValueError if it is not there or odd.

    A flag is `--batch 64`, `--batch=64`, or an override of Hydra: `train.batch=64`.
    """
    result, found = list(arguments), False
    for position, argument in enumerate(result):
        name, equals, value = argument.partition("=")
        is_flag = name.startswith("-") and name.lstrip("-") == flag.lstrip("-")
        if not is_flag and not (equals and name.lstrip("+") == flag):
            continue
        found = True
        value = value if equals else (result[position + 1] if position + 1 < len(result) else "")
        if not value.isdigit() or int(value) % divisor:
            raise ValueError(
                f"{name} {value or '(nothing)'} cannot be shared by {divisor} processes; use a multiple of {divisor}"
            )
        divided = str(int(value) // divisor)
        result[position if equals else position + 1] = f"{name}={divided}" if equals else divided
    if not found:
        raise ValueError(
            f"--batch-flag {flag}: no such flag among the script's arguments; add it after --, with its value"
        )
    return result


def command_of(launch: Launch) -> str:
    environ = "".join(f"{key}={shlex.quote(value)} " for key, value in launch.environ.items())
    many = len(launch.settings)
    program = "python" if many == 1 or not launch.is_launched else f"torchrun --standalone --nproc_per_node={many}"
    module = launch.settings[0].module
    script = ["-m", module] if module else [launch.script]
    return f"{environ}{program} {shlex.join([*script, *launch.argv])}"


def num_steps(launch: Launch) -> int:
    """Return how many optimizer steps a run is to make, 0 if that is left to the script."""
    settings = launch.settings[0]
    return 0 if settings.stop_before_first_step else max(0, settings.steps - settings.batches_done)
