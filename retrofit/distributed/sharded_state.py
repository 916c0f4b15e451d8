"""States whose tensors are sharded over the ranks (FSDP's DTensors): made whole for a file, and shared out again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch


def gather_state(value: Any) -> Any:
    """Return a state with every sharded tensor in it whole, on the CPU; what is not sharded stays as it is.

    Collective: every rank, with a state of the same structure. Without shards there is no communication.
    """
    if is_shard(value):
        mesh_device = torch.device(value.device_mesh.device_type)
        return value.detach().to(mesh_device).full_tensor().cpu()
    if isinstance(value, Mapping):
        return type(value)((key, gather_state(entry)) for key, entry in value.items())  # type: ignore[call-arg]
    if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
        return type(value)(gather_state(entry) for entry in value)
    return value


def shard_like(whole: Any, own: Any) -> Any:
    """Return this rank's shard of a whole tensor, sharded as `own` is; what has no sharded counterpart as it is."""
    if not isinstance(whole, torch.Tensor) or not is_shard(own) or is_shard(whole) or whole.shape != own.shape:
        return whole
    from torch.distributed.tensor import distribute_tensor

    device = torch.device(own.device_mesh.device_type)
    # Every rank has the whole tensor, so none has to be sent anything.
    shard = distribute_tensor(whole.to(device), own.device_mesh, own.placements, src_data_rank=None)
    return shard.to(own.device)


def shard_model_state(state: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Return a whole model's `state` sharded as the model's `own` state is."""
    return {name: shard_like(value, own.get(name)) for name, value in state.items()}


def shard_optimizer_state(state: Mapping[str, Any], optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Return a whole optimizer's `state` with what has a parameter's shape sharded as that parameter is."""
    own = dict(enumerate(parameter for group in optimizer.param_groups for parameter in group["params"]))
    entries = {
        index: {name: shard_like(value, own.get(index)) for name, value in entry.items()}
        for index, entry in state["state"].items()
    }
    return {**state, "state": entries}


def is_shard(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and hasattr(value, "full_tensor")
