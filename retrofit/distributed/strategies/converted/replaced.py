"""Put shards where a script holds the parameters that they replace: its optimizers, and lists of parameters."""

from __future__ import annotations

import gc
from typing import Any

import torch
from torch.optim import Optimizer

from ...checkpoint.sharded_state import shard_like
from .rendezvous import script_line


def put_shards_in_place(shards: dict[int, Any], whole: dict[str, Any]) -> None:
    """Replace whole parameters by their shards in optimizers, with their states, and in lists and tables.

    `shards`: by the id of what they replace; `whole`: the caller's table of that, which is left alone. A variable that
    has one, as after a loop, keeps it; its numbers are NaN then, so that no use of it goes unnoticed. Raises
    RuntimeError where another object has one.
    """
    gc.collect()
    for optimizer in living_optimizers():
        for parameter in [one for one in optimizer.state if id(one) in shards]:
            shard, state = shards[id(parameter)], optimizer.state.pop(parameter)
            optimizer.state[shard] = {name: shard_like(value, shard) for name, value in state.items()}
    found = [parameter for parameter in whole.values() if id(parameter) in shards]
    for holder in gc.get_referrers(*found):
        if holder is not found and holder is not whole:
            _replace_in(holder, shards)
    for parameter in found:
        if parameter.is_floating_point():
            with torch.no_grad():
                parameter.fill_(float("nan"))


def _replace_in(holder: Any, shards: dict[int, Any]) -> None:
    if isinstance(holder, list):
        holder[:] = [shards.get(id(entry), entry) for entry in holder]
    elif isinstance(holder, (tuple, set, frozenset)) or _is_of_module(holder):
        raise RuntimeError(
            f"{script_line()}: a {type(holder).__name__} has a parameter of this model from before "
            "rd.distribute_model, which RETROFIT_STRATEGY=fsdp replaces: make it after that call, use a list, or train "
            "with RETROFIT_STRATEGY=ddp"
        )
    elif isinstance(holder, dict) and "__name__" not in holder:  # not the variables of a module
        holder.update({key: shards[id(entry)] for key, entry in holder.items() if id(entry) in shards})


def _is_of_module(holder: Any) -> bool:
    """Return whether a dict is the parameters of a module, which is not of the model that was sharded."""
    owners = gc.get_referrers(holder) if isinstance(holder, dict) else []
    return any(isinstance(owner, dict) and owner.get("_parameters") is holder for owner in owners)


def living_optimizers() -> list[Any]:
    """Return the optimizers that there are."""
    return [found for found in gc.get_objects() if issubclass(type(found), Optimizer)]
