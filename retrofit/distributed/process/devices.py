"""The GPU of this process in place of the one that a script names, for devices and counts of GPUs."""

from __future__ import annotations

import os
import re
from functools import cache
from typing import Any

import torch

from .environment import read_environment
from .process_group import get_device, gpu_index

__all__ = ["choose_gpu", "own_device", "own_gpu_count", "own_storage", "visible_gpus"]


def own_device(device: Any) -> Any:
    """Return `device` with the number of this process's own GPU in the place of the one that it names.

    `device` is anything that names one: "cuda:0", 0, torch.device("cuda:0"), a map_location. Without a launcher, on a
    machine without GPUs, and where none is named by number ("cuda", "cpu", None, -1), it comes back as it is. It may be
    called before `setup_distributed`. Raises ValueError where other processes have GPUs and this one has none.
    """
    place = read_environment(os.environ)
    if place.world_size == 1 or not torch.cuda.device_count():  # the script may take the CPU there
        return device
    if isinstance(device, dict):
        return {saved_on: own_device(target) for saved_on, target in device.items()}
    is_index = _is_number(device) and device >= 0
    if not is_index and not (isinstance(device, (str, torch.device)) and re.fullmatch(r"cuda:\d+", str(device))):
        return device
    own = gpu_index(place, torch.cuda.device_count())
    if place.local_rank == 0 and str(device).rpartition(":")[2] != str(own):
        _notice(f"a GPU ({device}) is for one process; each process uses its own GPU")
    return own if is_index else type(device)(f"cuda:{own}")


def choose_gpu() -> None:
    """Make this process's own GPU the current one, before a script uses CUDA ahead of `setup_distributed`.

    Without a launcher, and without a GPU, nothing happens. Raises ValueError for a local rank without a GPU.
    """
    place = read_environment(os.environ)
    if place.world_size > 1 and torch.cuda.is_available():
        torch.cuda.set_device(gpu_index(place, torch.cuda.device_count()))


def own_storage(storage: Any, location: str) -> Any:
    """Move what was saved on a GPU to this process's device, and leave the rest: `torch.load(path, map_location=...)`.

    So a state of random numbers and a data set, which were saved in main memory, stay there.
    """
    if location == "cpu":
        return storage
    device = get_device()
    return storage.cuda(device.index) if device.type == "cuda" else storage


def own_gpu_count(count: Any) -> Any:
    """Return how many of `count` GPUs this process drives: all of them without a launcher, else one of them.

    For a script that multiplies its batch, its learning rate or its workers by the number of GPUs: started by a
    launcher, every process counts for one GPU. What is not a whole number comes back as it is.
    """
    return min(count, 1) if _is_number(count) and read_environment(os.environ).world_size > 1 else count


def visible_gpus(chosen: str) -> str:
    """Return what a script sets CUDA_VISIBLE_DEVICES to: its own choice, where that is enough for all processes here.

    Started by a launcher with more processes on this machine than `chosen` names GPUs, the choice is the launcher's.
    """
    place = read_environment(os.environ)
    named = [name for name in str(chosen).split(",") if name.strip() not in ("", "-1")]
    if place.launcher == "none" or not named or len(named) >= place.local_world_size:
        return chosen
    if place.local_rank == 0:
        _notice(
            f"GPUs ({chosen}) is not enough for {place.local_world_size} processes; CUDA_VISIBLE_DEVICES, set where "
            "the training is started, decides"
        )
    return os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(place.local_world_size)))


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


@cache
def _notice(text: str) -> None:
    """Say once that a script's choice of GPUs does not count."""
    print(f"notice: the script's choice of {text}")
