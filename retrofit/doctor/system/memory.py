"""Checks of memory: shared memory in /dev/shm, main memory, and processes killed for memory."""

from __future__ import annotations

import os
from pathlib import Path

from retrofit.doctor.finding import FAIL, GIB, MIB, OK, SKIP, WARN, Finding, Plan, counted, size
from retrofit.doctor.system.cgroup import Limits

SHARED = Path("/dev/shm")
DOCKER_DEFAULT = 64 * MIB
BATCH_BYTES = 40 * MIB  # 8 images of 3 x 512 x 512 float32 and their int64 masks
BATCHES_PER_WORKER = 2  # DataLoader's prefetch_factor
NCCL_BYTES = 32 * MIB  # per process, for GPUs that do not reach each other
RANK_BYTES = 2 * GIB  # torch with a CUDA context, a small model and its optimizer
WORKER_BYTES = GIB // 3  # measured: 0.3 GiB for a worker that has imported torch, of which a fork shares most
LEFTOVER_NAMES = ("torch_", "nccl-")  # how torch and NCCL name their files


def check_shared_memory(plan: Plan, folder: Path = SHARED) -> Finding:
    """Check whether the batches that workers hand over, and what NCCL exchanges, fit into shared memory."""
    name = "shared memory"
    if not folder.is_dir():
        return Finding(name, SKIP, f"this system has no {folder}")
    space = os.statvfs(folder)
    total, free = space.f_frsize * space.f_blocks, space.f_frsize * space.f_bavail
    need = plan.ranks * (plan.workers * BATCHES_PER_WORKER * BATCH_BYTES + NCCL_BYTES)
    value = f"{folder}: {size(free)} free of {size(total)}; {counted(plan.ranks * plan.workers, 'worker')} can hold "
    value += f"{size(need)} ({BATCHES_PER_WORKER} batches of {size(BATCH_BYTES)} each)"
    wanted = max(8, 2 ** max(0, (need // GIB).bit_length()))
    if total < need:
        remedy = f"docker run --ipc=host, or --shm-size={wanted}g; Kubernetes: an emptyDir with `medium: Memory` on "
        remedy += f"/dev/shm; no container: mount -o remount,size={wanted}g /dev/shm; or fewer workers"
        too_small = plan.workers > 0 and total <= DOCKER_DEFAULT
        return Finding(name, FAIL if too_small else WARN, value, remedy)
    if free < need:
        files = leftovers(folder)
        remedy = f"see what fills it: ls -l {folder}"
        if files:
            remedy += f"; {counted(len(files), 'file')} of torch or NCCL ({files[0]}): delete those of ended trainings"
        return Finding(name, WARN, value, remedy)
    return Finding(name, OK, value)


def leftovers(folder: Path) -> list[str]:
    """Return the names of the files that a killed training may have left in shared memory."""
    return sorted(path.name for path in folder.iterdir() if path.name.startswith(LEFTOVER_NAMES))


def check_memory(plan: Plan, total: int, available: int, limits: Limits) -> Finding:
    """Check whether the processes fit into memory, and into what a container may use of it."""
    name = "memory"
    need = plan.ranks * (RANK_BYTES + plan.workers * WORKER_BYTES)
    allowed = min(filter(None, (available, limits.memory_bytes)))
    value = f"{size(available)} available of {size(total)}"
    limited = limits.memory_bytes is not None and limits.memory_bytes < total
    if limits.memory_bytes is not None and limited:
        value += f", but this container may use {size(limits.memory_bytes)} in all"
    value += f"; {counted(plan.ranks, 'process', 'processes')} and their workers need about {size(need)}"
    if allowed < need:
        limit = "docker run --memory, resources.limits.memory in Kubernetes, --mem in SLURM"
        remedy = f"raise the limit ({limit})" if limited else "end other programs"
        remedy += "; or fewer workers. Beyond it the kernel kills processes: exit status 137 or -9, and no message"
        return Finding(name, WARN, value, remedy)
    return Finding(name, OK, value)


def check_oom_kills(limits: Limits) -> Finding:
    """Check whether the kernel has already killed processes of this container for memory."""
    name = "killed for memory"
    if not limits.oom_kills:
        return Finding(name, OK, "no process of this container so far")
    remedy = "raise the memory limit, or use fewer workers; a rank that vanishes leaves the others waiting"
    return Finding(name, WARN, f"{counted(limits.oom_kills, 'process', 'processes')} of this container so far", remedy)
