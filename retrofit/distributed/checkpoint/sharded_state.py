"""States whose tensors are sharded over the ranks (FSDP's DTensors): gathered for a file, and sharded again."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

import torch


def gather_state(value: Any) -> Any:
    """Return a state with every sharded tensor in it whole, on the CPU; what is not sharded stays as it is.

    Collective: every rank, with a state of the same structure. Without shards there is no communication.
    """

    def gather(value: Any, path: tuple[Any, ...]) -> Any:
        if is_sharded_tensor(value):
            mesh_device = torch.device(value.device_mesh.device_type)
            return value.detach().to(mesh_device).full_tensor().cpu()
        return map_entries(value, path, gather)

    return gather(value, ())


def map_entries(value: Any, path: tuple[Any, ...], function: Callable[[Any, tuple[Any, ...]], Any]) -> Any:
    """Return a mapping, a list or a tuple with `function(entry, path of keys)` for each entry; any other as it is."""
    if isinstance(value, dict) and type(value) not in (dict, OrderedDict):  # a Counter counts what it is made from
        entries = copy.copy(value)
        for key, entry in value.items():
            entries[key] = function(entry, (*path, key))
        return entries
    if isinstance(value, Mapping):
        return type(value)((key, function(entry, (*path, key))) for key, entry in value.items())  # type: ignore[call-arg]
    if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
        return type(value)(function(entry, (*path, number)) for number, entry in enumerate(value))
    return value


def shard_like(whole: Any, own: Any) -> Any:
    """Return this rank's shard of a whole tensor, sharded as `own` is; what has no sharded counterpart as it is."""
    if (
        not isinstance(whole, torch.Tensor)
        or not is_sharded_tensor(own)
        or is_sharded_tensor(whole)
        or whole.shape != own.shape
    ):
        return whole
    from torch.distributed.tensor import distribute_tensor  # type: ignore[attr-defined]  # torch 2.1 lacks it

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


def is_sharded_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and hasattr(value, "full_tensor")
