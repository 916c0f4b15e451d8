"""This process's place in the job, read from the launcher's environment."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["DistributedEnvironment", "read_environment"]

LAUNCHER_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
SLURM_VARIABLES = ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID")


@dataclass(frozen=True)
class DistributedEnvironment:
    """One process's place in the job. Without a launcher it is rank 0 of 1."""

    rank: int = 0
    local_rank: int = 0
    world_size: int = 1
    local_world_size: int = 1
    master_addr: str = "localhost"
    master_port: int = 29500
    launcher: str = "none"  # "none" | "env" (torchrun, torch.distributed.launch, by hand) | "slurm"


def read_environment(environ: Mapping[str, str]) -> DistributedEnvironment:
    """Return this process's place from `RANK/WORLD_SIZE/LOCAL_RANK`, else from a SLURM step, else rank 0 of 1.

    Raises ValueError where only some of the three are set, one is not a whole number, or they contradict each other.
    """
    names, launcher, host, port = LAUNCHER_VARIABLES, "env", "localhost", 29500
    present = [name for name in names if environ.get(name)]
    if present and len(present) < len(names):
        raise ValueError(
            f"half of a launcher's environment: {', '.join(f'{name}={environ[name]}' for name in present)} but no "
            f"{' and no '.join(name for name in names if name not in present)}; set all of {', '.join(names)} "
            f"(torchrun does), or unset {' and '.join(present)} for one process"
        )
    if not present:
        # SLURM_STEP_* describe the srun step; SLURM_NTASKS alone is also set in a batch script that runs one process.
        if not environ.get("SLURM_STEP_ID") or _whole_number(environ, "SLURM_STEP_NUM_TASKS", 1) <= 1:
            return DistributedEnvironment()
        names, launcher = SLURM_VARIABLES, "slurm"
        nodes = environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_JOB_NODELIST") or host
        host = re.sub(r"\[(\d+)[^]]*\]", r"\1", nodes).split(",")[0].strip()  # gpu[01-03,7],login: gpu01
        # One port per job, the same on every node, outside the ephemeral range (32768 and up).
        port = 15000 + _whole_number(environ, "SLURM_JOB_ID", 0) % 15000
    rank, world_size, local_rank = (_whole_number(environ, name) for name in names)
    if not 0 <= local_rank <= rank < world_size:
        raise ValueError(
            f"contradictory launcher environment: {names[0]}={rank} {names[2]}={local_rank} {names[1]}={world_size}; "
            f"need 0 <= {names[2]} <= {names[0]} < {names[1]}"
        )
    num_local = _whole_number(environ, "LOCAL_WORLD_SIZE", local_rank + 1)
    if launcher == "slurm":
        tasks_per_node = re.match(r"\d+", environ.get("SLURM_STEP_TASKS_PER_NODE", ""))  # "2(x3),1"
        num_local = int(tasks_per_node[0]) if tasks_per_node else 1
    host, port = environ.get("MASTER_ADDR") or host, _whole_number(environ, "MASTER_PORT", port)
    return DistributedEnvironment(rank, local_rank, world_size, num_local, host, port, launcher)


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
