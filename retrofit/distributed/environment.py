"""This process's place in the job, read from the launcher's environment. Standard library only, pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

__all__ = [
    "DistributedEnvironment",
    "read_environment",
]

LAUNCHER_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
DEFAULT_MASTER_PORT = 29500


@dataclass(frozen=True)
class DistributedEnvironment:
    """One process's place in the job. Without a launcher it is rank 0 of 1."""

    rank: int = 0
    local_rank: int = 0
    world_size: int = 1
    local_world_size: int = 1
    master_addr: str = "localhost"
    master_port: int = DEFAULT_MASTER_PORT
    launcher: str = "none"  # "none" | "env" (torchrun, torch.distributed.launch, by hand) | "slurm"


def read_environment(environ: Mapping[str, str]) -> DistributedEnvironment:
    """Return this process's place from `RANK/WORLD_SIZE/LOCAL_RANK`, else from a SLURM step, else rank 0 of 1.

    `environ` is never changed. Raises ValueError when only some of the three variables are set, when one is not
    a whole number, or when they contradict each other.
    """
    present = [name for name in LAUNCHER_VARIABLES if environ.get(name, "") != ""]
    if present:
        return _from_launcher(environ, present)
    if environ.get("SLURM_STEP_ID", "") and _whole_number(environ, "SLURM_STEP_NUM_TASKS", default=1) > 1:
        return _from_slurm(environ)
    return DistributedEnvironment()


def expand_slurm_nodelist(nodelist: str) -> list[str]:
    """Return the host names of a SLURM node list: `"gpu[01-03,7],login"` -> gpu01, gpu02, gpu03, gpu7, login."""
    hosts: list[str] = []
    for entry in re.findall(r"[^,\[]+(?:\[[^\]]*\][^,\[]*)*", nodelist):
        hosts.extend(_expand_brackets(entry))
    return hosts


def _from_launcher(environ: Mapping[str, str], present: list[str]) -> DistributedEnvironment:
    missing = [name for name in LAUNCHER_VARIABLES if name not in present]
    if missing:
        seen = ", ".join(f"{name}={environ[name]}" for name in present)
        raise ValueError(
            f"half of a launcher's environment: {seen} but no {' and no '.join(missing)}; set all of "
            f"{', '.join(LAUNCHER_VARIABLES)} (torchrun does), or unset {' and '.join(present)} for one process"
        )
    rank, world_size, local_rank = (_whole_number(environ, name) for name in LAUNCHER_VARIABLES)
    local_world_size = _whole_number(environ, "LOCAL_WORLD_SIZE", default=max(1, min(world_size, local_rank + 1)))
    if world_size < 1 or not 0 <= rank < world_size or not 0 <= local_rank <= rank:
        raise ValueError(
            f"contradictory launcher environment: RANK={rank} LOCAL_RANK={local_rank} WORLD_SIZE={world_size}; "
            "need 0 <= LOCAL_RANK <= RANK < WORLD_SIZE"
        )
    return DistributedEnvironment(
        rank=rank,
        local_rank=local_rank,
        world_size=world_size,
        local_world_size=local_world_size,
        master_addr=environ.get("MASTER_ADDR") or "localhost",
        master_port=_whole_number(environ, "MASTER_PORT", default=DEFAULT_MASTER_PORT),
        launcher="env",
    )


def _from_slurm(environ: Mapping[str, str]) -> DistributedEnvironment:
    # SLURM_STEP_* describe the srun step; SLURM_NTASKS alone is also set in a batch script that runs one process.
    nodelist = environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_JOB_NODELIST") or "localhost"
    job_id = _whole_number(environ, "SLURM_JOB_ID", default=0)
    tasks_per_node = re.match(r"\d+", environ.get("SLURM_STEP_TASKS_PER_NODE", "")) or re.match(r"\d+", "1")
    assert tasks_per_node is not None
    return DistributedEnvironment(
        rank=_whole_number(environ, "SLURM_PROCID"),
        local_rank=_whole_number(environ, "SLURM_LOCALID"),
        world_size=_whole_number(environ, "SLURM_STEP_NUM_TASKS"),
        local_world_size=int(tasks_per_node.group()),
        master_addr=environ.get("MASTER_ADDR") or expand_slurm_nodelist(nodelist)[0],
        # One port per job, the same on every node, outside the ephemeral range (32768 and up).
        master_port=_whole_number(environ, "MASTER_PORT", default=15000 + job_id % 15000),
        launcher="slurm",
    )


def _whole_number(environ: Mapping[str, str], name: str, default: int | None = None) -> int:
    value = environ.get(name, "")
    if value == "" and default is not None:
        return default
    try:
        return int(value)
    except ValueError:
        raise ValueError(
            f"{name} must be a whole number, got {value!r}; let the launcher set it, or unset it"
        ) from None


def _expand_brackets(entry: str) -> list[str]:
    match = re.search(r"\[([^\]]*)\]", entry)
    if match is None:
        return [entry.strip()] if entry.strip() else []
    numbers: list[str] = []
    for part in match.group(1).split(","):
        first, _, last = part.partition("-")
        width = len(first)
        numbers.extend(str(number).zfill(width) for number in range(int(first), int(last or first) + 1))
    prefix, suffix = entry[: match.start()].strip(), entry[match.end() :]
    return [host for number in numbers for host in _expand_brackets(f"{prefix}{number}{suffix}")]
