"""Checks of the limits per user and process: open files, processes and threads."""

from __future__ import annotations

import os

from retrofit.doctor.finding import FAIL, OK, SKIP, WARN, Finding, Plan
from retrofit.doctor.system.cgroup import Limits

# Measured with gloo on 2 ranks: 10 files before the first batch, then up to 9 for each worker (batches of 3 tensors;
# each tensor in flight is a file). CUDA and NCCL open some dozens more, and a script that keeps batches keeps files.
LEAST_FILES, LEAST_FILES_PER_WORKER = 32, 8
FILES, FILES_PER_WORKER, FILES_PER_RANK = 256, 32, 16
THREADS_PER_RANK, THREADS_PER_WORKER = 64, 4  # CUDA, NCCL, the loader's pin-memory thread, OpenMP


def check_open_files(plan: Plan) -> Finding:
    """Check whether one training process may open enough files for its connections and its workers' batches."""
    name = "open files"
    try:
        import resource
    except ImportError:
        return Finding(name, SKIP, "this system has no such limit")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    world_size = plan.ranks * plan.nnodes
    least = LEAST_FILES + LEAST_FILES_PER_WORKER * plan.workers + world_size
    need = FILES + FILES_PER_WORKER * plan.workers + FILES_PER_RANK * world_size
    value = f"{_limit(soft)} per process (hard limit {_limit(hard)}); {plan.workers} workers and {world_size} "
    value += f"processes take up to {need}"
    if soft == resource.RLIM_INFINITY or soft >= need:
        return Finding(name, OK, value)
    if hard == resource.RLIM_INFINITY or hard >= need:
        wanted = 65536 if hard == resource.RLIM_INFINITY else min(hard, 65536)
        remedy = f"ulimit -n {wanted}, in the shell that starts the training"
    else:
        remedy = "docker run --ulimit nofile=65536:65536; or `* - nofile 65536` in /etc/security/limits.conf and a "
        remedy += "new login"
    return Finding(name, FAIL if soft < least else WARN, value, remedy)


def check_processes(plan: Plan, limits: Limits) -> Finding:
    """Check whether this user, and this container, may start the processes and threads of the training."""
    name = "processes"
    need = plan.ranks * (THREADS_PER_RANK + plan.workers * THREADS_PER_WORKER)
    if limits.pids is not None and limits.num_pids + need > limits.pids:
        value = f"this container has {limits.num_pids} of {limits.pids} processes and threads; training takes "
        value += f"about {need} more"
        remedy = "docker run --pids-limit=-1; podPidsLimit in Kubernetes"
        return Finding(
            name, FAIL if limits.num_pids + plan.ranks * (1 + plan.workers) > limits.pids else WARN, value, remedy
        )
    try:
        import resource

        soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    except (ImportError, AttributeError):
        return Finding(name, SKIP, "this system has no such limit")
    # The limit counts threads, and does not hold for root.
    if os.geteuid() == 0 or soft == resource.RLIM_INFINITY:
        return Finding(name, OK, "no limit for this user")
    running = threads_of_user(os.getuid())
    value = f"{running} of {soft} processes and threads of this user run; training takes about {need} more"
    if running + need > soft:
        remedy = f"ulimit -u {running + 4 * need}; where that is refused: `* - nproc` in /etc/security/limits.conf"
        return Finding(name, WARN, value, remedy)
    return Finding(name, OK, value)


def threads_of_user(uid: int) -> int:
    """Return the number of threads of all processes of a user."""
    import psutil

    count = 0
    for process in psutil.process_iter(["uids", "num_threads"]):
        uids = process.info["uids"]
        if uids is not None and uids.real == uid:
            count += process.info["num_threads"] or 1
    return count


def _limit(number: int) -> str:
    return "unlimited" if number < 0 else str(number)
