"""Print facts that PyTorch reports about this machine, as JSON lines; `torch_facts` runs it as a child process.

A child process, because a query for a GPU's memory opens a CUDA context, which an exclusive GPU grants to one process
only, and because a broken driver can hang or kill the process that queries it. Each line is printed at once.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from typing import Any


def main() -> None:
    """Print the facts of each stage; `stage` names the next one."""
    _report(stage="import torch", python=".".join(map(str, sys.version_info[:3])))
    import torch

    _report(stage="read the environment", torch=torch.__version__, cuda=torch.version.cuda, hip=torch.version.hip)
    _report(**_software())
    _report(**_place())
    _report(stage="start CUDA")
    _report(**_visible_gpus())
    if torch.cuda.is_available():
        _report(stage="ask each GPU")
        _report(gpus=[_gpu(index) for index in range(torch.cuda.device_count())])
        _report(stage="ask for peer access")
        _report(peers=_peers(torch.cuda.device_count()))
    _report(stage="done")


def _report(**facts: Any) -> None:
    print(json.dumps(facts), flush=True)


def _software() -> dict[str, Any]:
    import torch
    import torch.distributed as dist

    names = ("gloo", "nccl", "mpi", "ucc", "xccl")
    backends = [name for name in names if dist.is_available() and dist.is_backend_available(name)]
    nccl = ".".join(map(str, torch.cuda.nccl.version())) if "nccl" in backends else None  # type: ignore[no-untyped-call]
    return {"backends": backends, "nccl": nccl, "architectures": torch.cuda.get_arch_list()}


def _place() -> dict[str, Any]:
    from retrofit.distributed.process.environment import read_environment

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
        facts = {"name": properties.name, "capability": [properties.major, properties.minor]}
        return {**facts, "free": torch.cuda.mem_get_info(index)[0], "total": properties.total_memory}
    except RuntimeError as error:  # busy, lost, or full
        return {"error": str(error).splitlines()[0]}


def _peers(num_gpus: int) -> list[list[bool]]:
    import torch

    try:
        return [
            [one == other or torch.cuda.can_device_access_peer(one, other) for other in range(num_gpus)]
            for one in range(num_gpus)
        ]
    except RuntimeError:  # _gpu has printed the error of the GPU that failed
        return []


if __name__ == "__main__":
    main()
