"""Scripts that start their own processes (torch.multiprocessing.spawn): their number, and why some are not followed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from retrofit.verify.evidence import Run
from retrofit.verify.trace.events import DispatchedBatches, GroupJoin, ParserUse, SpawnCall

STARTS_PROCESSES = re.compile(r"^[^#]*\b(mp|multiprocessing)\.(spawn|start_processes)\(|^[^#]*\bspawn\([\w.]+, *args=")
# Names of the options that say how many processes a script starts, without dashes.
NUMBER_OF_PROCESSES = re.compile(
    r"(n|num|number_of)?_?(gpus?|procs?|processes|devices|ranks)(_per_node|_count)?|world_?size|nproc_per_node"
)


def spawns(script: Path, many: Run) -> bool:
    """Return whether a script whose processes a launcher's variables do not make join a group starts its own."""
    return not _is_joined(many) and (many.main.first(SpawnCall) is not None or place_of_start(script) is not None)


def _is_joined(run: Run) -> bool:
    """Return whether the processes of a run are in one group."""
    return any(event.world_size == run.world_size > 1 for rank in run.ranks for event in rank.of(GroupJoin))


def place_of_start(script: Path) -> str | None:
    """Return the place, as `train.py:12`, at which a script starts its own processes; None where it has none."""
    for number, line in enumerate(script.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
        if STARTS_PROCESSES.search(line):
            return f"{script.name}:{number}"
    return None


def number_options(run: Run) -> list[str]:
    """Return the options of the script's own parser that may say how many processes it starts.

    `--world-size` is the last: it may be the number of machines, each with as many processes as it has GPUs.
    """
    found = [
        flag
        for parser in run.main.of(ParserUse)
        for option in parser.options
        for flag in option.flags
        if option.takes_value and NUMBER_OF_PROCESSES.fullmatch(flag.lstrip("-").replace("-", "_").lower())
    ]
    return sorted(dict.fromkeys(found), key=lambda flag: "world" in flag)


def with_number(arguments: Sequence[str], flag: str, number: int) -> list[str]:
    """Return the arguments with the value of `flag` replaced, or with the flag where they have none."""
    result = list(arguments)
    for position, argument in enumerate(result):
        if argument == flag and position + 1 < len(result):
            result[position + 1] = str(number)
            return result
        if argument.startswith(f"{flag}="):
            result[position] = f"{flag}={number}"
            return result
    return [*result, flag, str(number)]


def why_not_followed(script: Path, run: Run) -> str | None:
    """Return why the processes that a script starts in a run cannot be compared; None where they can."""
    call = run.main.first(SpawnCall)
    if call is None:
        if run.world_size == 1 or _is_joined(run) or not run.finished:
            return None
        place = place_of_start(script) or script.name
        return (
            f"{place} starts processes of its own (mp.spawn), but none when {run.world_size} are asked for; give the "
            "argument that says their number after --, or let the script use RANK, LOCAL_RANK and WORLD_SIZE where "
            "they are set, as torchrun sets them"
        )
    place = (call.where or script.name).partition(" in ")[0]
    if call.problem is not None:
        return f"the processes that {place} starts are not followed: {call.problem}"
    if call.nprocs != run.world_size:
        return (
            f"{place} starts {call.nprocs} processes where {run.world_size} would be compared; take their number from "
            "torch.cuda.device_count() or an argument of the script such as --gpus"
        )
    return None


def why_not_drawn(many: Run) -> str | None:
    """Return why the batches of the ranks cannot be compared; None where each rank draws its own."""
    if not any(rank.of(DispatchedBatches) for rank in many.ranks):
        return None
    return (
        "rank 0 draws the batches of all ranks and sends them (dispatch_batches of Accelerate, which a stream "
        "has by default), and that is not followed; verify with DataLoaderConfiguration(dispatch_batches=False)"
    )


def meets_at_own_port(one: Run, many: Run) -> bool:
    """Return whether a script's group has a port that no launcher has given: runs with it cannot be made together.

    Two runs with other ports take a free one each time.
    """
    joins = [[event for rank in run.ranks for event in rank.of(GroupJoin)] for run in (one, many)]
    own = [{join.master_port for join in of_run} - {join.launcher_port for join in of_run} for of_run in joins]
    ports = [found - {None} for found in own]
    return bool(ports[0] & ports[1]) if all(ports) else any(map(bool, ports))
