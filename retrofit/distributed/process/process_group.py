"""Join and leave the job's process group, and ask for this process's place in it."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any, NoReturn, TypeVar, cast

import torch
import torch.distributed as dist
from torch.torch_version import TorchVersion

from ..failure.collective_calls import collective
from ..failure.watchdog import JOB_HOOKS, start_watchdog, stop_watchdog
from .environment import DistributedEnvironment, read_environment
from .options import FLAGS, forget_options, get_option, set_options, unread_twins

__all__ = [
    "barrier",
    "cleanup_distributed",
    "get_device",
    "get_local_rank",
    "get_rank",
    "get_world_size",
    "is_distributed",
    "is_main_process",
    "one_process_only",
    "setup_distributed",
]

F = TypeVar("F", bound=Callable[..., Any])

# What other modules add to joining and leaving the group; every rank calls it.
before_joining: list[Callable[[], Any]] = []
before_leaving: list[Callable[[], Any]] = []  # not while an error passes

_place = DistributedEnvironment()
_control_group: dist.ProcessGroup | None = None
_left: list[Any] = []  # backends of the group that was left last


def setup_distributed(
    args: argparse.Namespace | None = None,
    *,
    backend: str | None = None,
    init_method: str | None = None,
    timeout_s: float | None = None,
) -> tuple[int, int, int]:
    """Join the process group that the launcher asks for and return `(rank, local_rank, world_size)`.

    Collective: every rank. Options come from the keywords, else from `args` (see `add_runtime_flags`), else from the
    environment twins. Without a launcher and without `--distributed` nothing happens and the result is `(0, 0, 1)`;
    with `--distributed` alone it is a real group of one process. On CUDA the process's GPU becomes the current device.

    Raises ValueError for a contradictory environment, a local rank without a GPU or a backend this machine lacks, and
    RuntimeError when the processes cannot meet (port in use, master not reachable).
    """
    global _place, _control_group
    if dist.is_initialized():
        return get_rank(), get_local_rank(), get_world_size()
    set_options(args or argparse.Namespace())
    options = {name: get_option(name) for name in FLAGS}
    for hook in before_joining:
        hook()
    place = read_environment(os.environ)
    if place.launcher == "none":
        place = replace(place, local_rank=max(0, options["local_rank"]))
    backend = _resolve_backend(backend or options["dist_backend"])
    if torch.cuda.is_available():
        torch.cuda.set_device(gpu_index(place, torch.cuda.device_count()))
    for name in unread_twins(os.environ) if place.rank == 0 else ():
        print(f"notice: {name} has no effect: it is not an option of the runtime that this script uses")
    if not options["distributed"] and place.world_size == 1:
        _place = place
        return 0, place.local_rank, 1
    if not options["distributed"] and place.rank == 0:
        print(f"notice: started with WORLD_SIZE={place.world_size}: training is distributed (--distributed says so)")
    timeout = timedelta(seconds=timeout_s if timeout_s is not None else options["dist_timeout"])
    _join(place, backend, init_method or options["dist_url"], timeout)
    _control_group = dist.new_group(backend="gloo", timeout=timeout)  # type: ignore[assignment]
    _place = place
    if place.world_size > 1:
        store = dist.distributed_c10d._get_default_store()
        start_watchdog(store, begun_collectives, place.rank, place.world_size)
    return place.rank, place.local_rank, place.world_size


def cleanup_distributed() -> None:
    """Leave the process group; nothing happens outside one. Collective: every rank (not while an error passes).

    A checkpoint that is still being written in the background comes first; its errors are raised here.
    """
    global _place, _control_group
    ends_well = sys.exc_info()[0] is None
    for hook in before_leaving if ends_well else ():
        hook()
    forget_options()
    if dist.is_initialized():
        if ends_well:
            barrier()  # a rank that closes its sockets early can break a slower rank's last collective
        stop_watchdog(left_together=ends_well)
        if TorchVersion(torch.__version__) < "2.8" and "gloo" in dist.get_backend():
            # There a gloo backend that is freed with its group, or with a model wrapped in it, waits for its threads
            # and keeps the interpreter's lock, which one of them may want. Freed by Python it does not keep the lock.
            cpu, groups = torch.device("cpu"), (dist.group.WORLD, _control_group)
            _left[:] = [group._get_backend(cpu) for group in groups if group is not None]
            del groups
        dist.destroy_process_group()
    JOB_HOOKS.leave()
    _control_group, _place = None, DistributedEnvironment()


def is_distributed() -> bool:
    """Return whether this process is in a process group (also one of a single process)."""
    return dist.is_available() and dist.is_initialized()


def get_rank() -> int:
    """Return this process's index in the job, 0 outside a group."""
    return dist.get_rank() if is_distributed() else 0


def get_world_size() -> int:
    """Return the number of processes in the job, 1 outside a group."""
    return dist.get_world_size() if is_distributed() else 1


def get_local_rank() -> int:
    """Return this process's index on its node, 0 outside a group."""
    return _place.local_rank


def one_process_only(reason: str, function: F | None = None) -> F | None:
    """Raise RuntimeError in a job of several processes, for this reason; with a `function`, when that is called.

    In one process return the function.
    """
    caller, world_size = sys._getframe(1), read_environment(os.environ).world_size

    def refuse(*args: Any, **options: Any) -> NoReturn:
        place = f"{os.path.basename(caller.f_code.co_filename)}:{caller.f_lineno}"
        remedy = "start this in one process, without a launcher, or choose another option"
        raise RuntimeError(f"{place}: {reason}, and {world_size} processes were started; {remedy}")

    return function if world_size == 1 else refuse() if function is None else cast(F, refuse)


def is_main_process() -> bool:
    """Return whether this process is rank 0, which prints and writes files; without a group the launcher says so."""
    return (dist.get_rank() if is_distributed() else read_environment(os.environ).rank) == 0


def get_device() -> torch.device:
    """Return the device this process trains on: its own GPU, or the CPU where there is none."""
    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")


def control_group() -> dist.ProcessGroup | None:
    """Return the gloo group for what is not a tensor of the training; None = the default group.

    There a call by one rank alone could meet DDP's gradients, and gloo ends a process where sizes differ.
    """
    return _control_group


def group_for(tensor: torch.Tensor) -> dist.ProcessGroup | None:
    """Return the group in which the runtime combines `tensor`: `control_group`, of a GPU tensor the default."""
    return _control_group if tensor.device.type == "cpu" else None


def begun_collectives() -> tuple[int, ...]:
    """Return how many collectives this rank has begun, by backend of the default group; () if they do not count."""
    try:
        world: Any = dist.group.WORLD
        return tuple(world._get_backend(device)._get_sequence_number_for_group() for device in world._device_types)
    except (AttributeError, RuntimeError):
        return ()


@collective
def barrier() -> None:
    """Wait until every rank is here; nothing happens outside a group. Collective: every rank."""
    if is_distributed() and "nccl" in dist.get_backend():
        dist.barrier(device_ids=[torch.cuda.current_device()])
    elif is_distributed():
        dist.barrier(control_group())


def require_group(caller: str) -> None:
    """Raise where a launcher has started several processes that are not one job: each would train for itself."""
    world_size = os.environ.get("WORLD_SIZE", "1")
    if world_size != "1" and not is_distributed():
        raise RuntimeError(
            f"{caller} was called outside the process group, in one of {world_size} processes; call "
            "setup_distributed() before it"
        )


def gpu_index(place: DistributedEnvironment, num_visible: int) -> int:
    """Return the index of this process's GPU among the visible ones. Raises ValueError when there is none."""
    if place.launcher == "slurm" and num_visible == 1:
        return 0  # srun --gpus-per-task=1 shows every task its own GPU alone, as number 0
    if place.local_rank >= num_visible:
        raise ValueError(
            f"LOCAL_RANK={place.local_rank} but only {num_visible} visible GPU(s) on this node; start at most "
            f"{num_visible} processes here (--nproc_per_node={num_visible}), or widen CUDA_VISIBLE_DEVICES"
        )
    return place.local_rank


def _resolve_backend(backend: str) -> str:
    has_gpu = torch.cuda.is_available()
    if "nccl" in backend and not has_gpu:
        raise ValueError(f"--dist_backend {backend} needs a CUDA GPU and none is visible; use --dist_backend gloo")
    # Both: CUDA tensors travel over nccl, counts and decisions on the CPU over gloo without a GPU sync.
    both = "cpu:gloo,cuda:nccl" if has_gpu else "gloo"
    return both if backend in ("auto", "nccl") else backend


def _join(place: DistributedEnvironment, backend: str, init_method: str, timeout: timedelta) -> None:
    where = f"{place.master_addr}:{place.master_port}" if init_method == "env://" else init_method
    meeting: dict[str, Any] = {"init_method": init_method}
    if place.launcher != "none":
        os.environ.update(MASTER_ADDR=place.master_addr, MASTER_PORT=str(place.master_port))
    elif init_method == "env://":
        meeting = {"store": dist.HashStore()}
    try:
        store = JOB_HOOKS.own_store(init_method, place.rank, place.world_size, timeout)
        if store is not None:
            meeting = {"store": store}
        dist.init_process_group(backend, rank=place.rank, world_size=place.world_size, timeout=timeout, **meeting)
    except RuntimeError as error:  # torch's DistNetworkError and DistStoreError are RuntimeErrors in all versions
        if "EADDRINUSE" in str(error) or "ddress already in use" in str(error):
            raise RuntimeError(
                f"port in use: rank 0 cannot listen on {where} (another training on this machine?); set MASTER_PORT "
                "to a free port, or start with `torchrun --standalone`, which picks one"
            ) from error
        raise RuntimeError(
            f"rank {place.rank} of {place.world_size} could not join the group at {where} within "
            f"{timeout.total_seconds():.0f} s: {str(error).splitlines()[0]}; check that MASTER_ADDR and MASTER_PORT "
            "are the same on every node and that all processes were started"
        ) from error
