"""Checks of CPU cores: the number that is usable, and the processes and threads that need them."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from retrofit.doctor.finding import OK, WARN, Finding, Plan, counted
from retrofit.doctor.system.cgroup import Limits


def usable_cores() -> int:
    """Return the number of cores that this process may run on (taskset, docker --cpuset-cpus, SLURM)."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def check_cores(plan: Plan, cores: int, limits: Limits) -> Finding:
    """Check whether every process and every worker has a core."""
    name = "CPU cores"
    usable = min(cores, limits.cpus) if limits.cpus else cores
    need = plan.ranks * (plan.workers + 1)
    value = f"{_number(usable)} usable of {os.cpu_count()}; {plan.ranks} x (1 + {plan.workers} workers) want {need}"
    if usable >= need:
        return Finding(name, OK, value)
    fitting = int(usable // plan.ranks) - 1
    if fitting < 0:
        remedy = "fewer processes, or more cores (docker run --cpus, SLURM: --cpus-per-task); they take turns now"
    else:
        remedy = f"--workers {fitting} per process fits; or more cores (docker run --cpus, SLURM: --cpus-per-task)"
    return Finding(name, WARN, value, remedy)


def check_quota(cores: int, limits: Limits) -> Finding:
    """Check whether the container may use less CPU time than the cores that programs see and start threads for."""
    name = "CPU quota"
    if limits.cpus is None:
        return Finding(name, OK, "none")
    value = f"{_number(limits.cpus)} of the {cores} cores that programs see"
    if limits.cpus >= cores:
        return Finding(name, OK, value)
    remedy = "torch starts a thread per core it sees, and the kernel halts them all in turn: export OMP_NUM_THREADS="
    remedy += f"{max(1, int(limits.cpus))} divided by the processes; or docker run --cpuset-cpus instead of --cpus"
    return Finding(name, WARN, value, remedy)


def check_threads(plan: Plan, cores: int, limits: Limits, environ: Mapping[str, str]) -> Finding:
    """Check whether the processes' OpenMP threads fit on the cores."""
    name = "OMP_NUM_THREADS"
    usable = int(min(cores, limits.cpus or cores)) or 1
    share = max(1, usable // plan.ranks)
    text = environ.get(name)
    if not text:
        return Finding(name, OK, "not set: torchrun makes it 1 for each process; `srun` and mp.spawn leave it to torch")
    match = re.match(r"\s*(\d+)\s*(,|$)", text)  # "4,2" is for nested regions
    if match is None or int(match.group(1)) < 1:
        return Finding(name, WARN, f"{text!r} is not a number of threads", f"export OMP_NUM_THREADS={share}")
    threads = int(match.group(1))
    value = f"{threads} x {counted(plan.ranks, 'process', 'processes')}, on {counted(usable, 'core')}"
    if threads * plan.ranks > usable and threads > 1:
        return Finding(name, WARN, f"{value}: they compete for cores", f"export OMP_NUM_THREADS={share}")
    return Finding(name, OK, value)


def _number(cores: float) -> str:
    return f"{cores:g}"
