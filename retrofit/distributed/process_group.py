"""Join and leave the job's process group, and ask for this process's place in it."""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import replace
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.torch_version import TorchVersion

from .collective_calls import collective
from .environment import DistributedEnvironment, read_environment
from .failure import JOB_HOOKS, start_watchdog, stop_watchdog
from .options import FLAGS, forget_options, get_option, set_options

__all__ = [
    "barrier",
    "cleanup_distributed",
    "get_device",
    "get_local_rank",
    "get_rank",
    "get_world_size",
    "is_distributed",
    "is_main_process",
    "setup_distributed",
]

_place = DistributedEnvironment()
_control_group: dist.ProcessGroup | None = None
_left: list[dist.ProcessGroupGloo] = []  # backends of the group that was left last; see _destroy_group


def setup_distributed(
    args: argparse.Namespace | None = None,
    *,
    backend: str | None = None,
    init_method: str | None = None,
    timeout_s: float | None = None,
) -> tuple[int, int, int]:
    """Join the process group that the launcher asks for and return `(rank, local_rank, world_size)`.

    Collective: every rank. Options come from the keywords, else from `args` (see `add_runtime_flags`), else
    from the environment twins. Without a launcher and without `--distributed` nothing happens and the result is
    `(0, 0, 1)`; with `--distributed` alone it is a real group of one process. On CUDA the process's GPU becomes the
    current device.

    Raises ValueError for a contradictory environment, a local rank without a GPU or a backend this machine lacks, and
    RuntimeError when the processes cannot meet (port in use, master not reachable).
    """
    global _place, _control_group
    if dist.is_initialized():
        return get_rank(), get_local_rank(), get_world_size()
    set_options(args or argparse.Namespace())
    options = {name: get_option(name) for name in FLAGS}
    place = _place_of_this_process(options)
    backend = _resolve_backend(backend or options["dist_backend"])
    if torch.cuda.is_available():
        torch.cuda.set_device(gpu_index(place, torch.cuda.device_count()))
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

    A checkpoint that is still being written in the background comes first: see `finish_saves`, whose errors it raises.
    The folder of `rd.job.open_run` is unlocked.
    """
    global _place, _control_group
    if sys.exc_info()[0] is None:
        from .checkpoint.async_save import finish_saves  # which imports this module

        finish_saves()
    forget_options()
    if dist.is_initialized():
        if sys.exc_info()[0] is None:
            barrier()  # a rank that closes its sockets early can break a slower rank's last collective
        stop_watchdog(left_together=sys.exc_info()[0] is None)
        _destroy_group()
    JOB_HOOKS.leave()
    _control_group = None
    _place = DistributedEnvironment()


def _destroy_group() -> None:
    """Leave the group; before torch 2.8 keep its gloo backend.

    There the last of a group and of the models wrapped in it, when it is freed, waits for gloo's threads and keeps the
    interpreter's lock, which one of them may want, to free a tensor of the last collective: the job hangs at its very
    end. Python's own handle on a backend is freed without that lock.
    """
    if TorchVersion(torch.__version__) < "2.8" and dist.is_gloo_available():
        group = dist.group.WORLD
        groups = [group] if _control_group is None else [group, _control_group]
        backends = {each._get_backend(device) for each in groups for device in each._device_types}  # type: ignore[union-attr]
        _left[:] = [backend for backend in backends if isinstance(backend, dist.ProcessGroupGloo)]
        del group, groups, backends
    dist.destroy_process_group()


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


def is_main_process() -> bool:
    """Return whether this process is rank 0: the one that prints and writes files."""
    return get_rank() == 0


def control_group() -> dist.ProcessGroup | None:
    """Return the gloo group of all ranks, in which what is no tensor of the training travels; None = the default.

    One that a rank calls alone must not meet DDP's gradients in the default group: gloo ends a process by SIGABRT where
    two collectives of different sizes meet, before the watchdog can name the call.
    """
    return _control_group


def group_for(tensor: torch.Tensor) -> dist.ProcessGroup | None:
    """Return the group in which the runtime combines `tensor`: `control_group`, of a GPU tensor the default."""
    return _control_group if tensor.device.type == "cpu" else None


def begun_collectives() -> tuple[int, ...]:
    """Return how many collectives this rank has begun, in each backend of the default group; () if they do not count.

    A group is not kept for it: it would not be freed when it is left.
    """
    world = dist.group.WORLD
    if world is None:
        return ()
    try:
        backends: list[Any] = [world._get_backend(device) for device in world._device_types]
        return tuple(backend._get_sequence_number_for_group() for backend in backends)
    except (AttributeError, RuntimeError):
        return ()


def get_device() -> torch.device:
    """Return the device this process trains on: its own GPU, or the CPU where there is none."""
    if torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


@collective
def barrier() -> None:
    """Wait until every rank is here; nothing happens outside a group. Collective: every rank."""
    if not is_distributed():
        return
    if "nccl" in dist.get_backend():
        dist.barrier(device_ids=[torch.cuda.current_device()])
    else:
        dist.barrier(control_group())


def gpu_index(place: DistributedEnvironment, num_visible: int) -> int:
    """Return the index, among the visible GPUs, of the one this process uses.

    Raises ValueError when there is none for its local rank.
    """
    if place.launcher == "slurm" and num_visible == 1:
        return 0  # srun --gpus-per-task=1 shows every task its own GPU alone, as number 0
    if place.local_rank >= num_visible:
        raise ValueError(
            f"LOCAL_RANK={place.local_rank} but only {num_visible} visible GPU(s) on this node; start at most "
            f"{num_visible} processes here (--nproc_per_node={num_visible}), or widen CUDA_VISIBLE_DEVICES"
        )
    return place.local_rank


def _place_of_this_process(options: dict) -> DistributedEnvironment:
    place = read_environment(os.environ)
    if place.launcher == "none":
        if options["world_size"] > 1:
            raise ValueError(
                f"--world_size {options['world_size']} but no launcher started the processes; use "
                f"torchrun --nproc_per_node={options['world_size']} ..., which sets RANK, WORLD_SIZE and LOCAL_RANK"
            )
        return replace(place, local_rank=max(0, options["local_rank"]))
    if options["world_size"] not in (1, place.world_size) and place.rank == 0:
        print(f"notice: --world_size {options['world_size']} ignored, the launcher set WORLD_SIZE={place.world_size}")
    return place


def _resolve_backend(backend: str) -> str:
    if backend == "auto":
        # Both: CUDA tensors travel over nccl, counts and decisions on the CPU over gloo without a GPU sync.
        return "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    if "nccl" in backend and not torch.cuda.is_available():
        raise ValueError(f"--dist_backend {backend} needs a CUDA GPU and none is visible; use --dist_backend gloo")
    return "cpu:gloo,cuda:nccl" if backend == "nccl" else backend


def _join(place: DistributedEnvironment, backend: str, init_method: str, timeout: timedelta) -> None:
    where = f"{place.master_addr}:{place.master_port}" if init_method == "env://" else init_method
    try:
        if place.launcher == "none" and init_method == "env://":
            dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1, timeout=timeout)
            return
        if place.launcher == "slurm" and init_method == "env://":
            init_method = f"tcp://{where}"
        os.environ.setdefault("MASTER_ADDR", place.master_addr)
        os.environ.setdefault("MASTER_PORT", str(place.master_port))
        layout: dict[str, Any] = {"rank": place.rank, "world_size": place.world_size, "timeout": timeout}
        store = JOB_HOOKS.own_store(init_method, place.rank, place.world_size, timeout)
        meeting = {"init_method": init_method} if store is None else {"store": store}
        dist.init_process_group(backend, **meeting, **layout)
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


def require_group(caller: str) -> None:
    """Raise where a launcher has started several processes that are not one job: each would train for itself."""
    world_size = os.environ.get("WORLD_SIZE", "1")
    if world_size != "1" and not is_distributed():
        raise RuntimeError(
            f"{caller} was called outside the process group, in one of {world_size} processes; call "
            "setup_distributed() in front of it"
        )
