"""What PyTorch says about this machine, as JSON lines; `torch_facts` runs it in a process of its own.

Its own process, because asking for a GPU's memory opens a CUDA context, which an exclusive GPU gives to one process
only, and because a broken driver can hang or kill whoever asks. Each line is written as soon as it is known.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from typing import Any


def main() -> None:
    """Print the facts of each stage; `stage` says what begins."""
    _tell(stage="import torch", python=".".join(map(str, sys.version_info[:3])))
    import torch

    _tell(stage="read the environment", torch=torch.__version__, cuda=torch.version.cuda, hip=torch.version.hip)
    _tell(**_software())
    _tell(**_place())
    _tell(stage="start CUDA")
    _tell(**_visible_gpus())
    if torch.cuda.is_available():
        _tell(stage="ask each GPU")
        _tell(gpus=[_gpu(index) for index in range(torch.cuda.device_count())])
        _tell(stage="ask for peer access")
        _tell(peers=_peers(torch.cuda.device_count()))
    _tell(stage="done")


def _tell(**facts: Any) -> None:
    print(json.dumps(facts), flush=True)


def _software() -> dict[str, Any]:
    import torch
    import torch.distributed as dist

    names = ("gloo", "nccl", "mpi", "ucc", "xccl")
    backends = [name for name in names if dist.is_available() and dist.is_backend_available(name)]
    nccl = ".".join(map(str, torch.cuda.nccl.version())) if "nccl" in backends else None  # type: ignore[no-untyped-call]
    return {"backends": backends, "nccl": nccl, "architectures": torch.cuda.get_arch_list()}


def _place() -> dict[str, Any]:
    from retrofit.distributed.environment import read_environment

    try:
        place = read_environment(os.environ)
    except ValueError as error:
        return {"place_error": str(error)}
    return {"launcher": place.launcher, "rank": place.rank, "world_size": place.world_size}


def _visible_gpus() -> dict[str, Any]:
    import torch

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if torch.cuda.is_available():
            return {"num_gpus": torch.cuda.device_count()}
        reason = "; ".join(str(warning.message) for warning in caught)
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
    except (RuntimeError, AssertionError) as error:  # AssertionError: torch was built without CUDA
        reason = reason or str(error)
    return {"num_gpus": 0, "reason": " ".join(reason.split())}


def _gpu(index: int) -> dict[str, Any]:
    import torch

    try:
        properties = torch.cuda.get_device_properties(index)
        told = {"name": properties.name, "capability": [properties.major, properties.minor]}
        return {**told, "free": torch.cuda.mem_get_info(index)[0], "total": properties.total_memory}
    except RuntimeError as error:  # busy, lost, or full
        return {"error": str(error).splitlines()[0]}


def _peers(num_gpus: int) -> list[list[bool]]:
    import torch

    try:
        return [
            [one == other or torch.cuda.can_device_access_peer(one, other) for other in range(num_gpus)]
            for one in range(num_gpus)
        ]
    except RuntimeError:  # the GPU that is at fault has told its error above
        return []


if __name__ == "__main__":
    main()
