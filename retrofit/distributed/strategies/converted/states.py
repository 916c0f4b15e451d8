"""States of sharded models and optimizers as a script knows them: whole to save, and whole to load."""

from __future__ import annotations

import functools
from collections.abc import MutableMapping
from typing import Any
from zlib import crc32

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from ...checkpoint.sharded_state import is_sharded_tensor, map_entries, shard_like, shard_optimizer_state
from ...ddp.unwrap import all_parameters
from .rendezvous import STATE, arrive, note_change, offer

FIRST_OPTIMIZER = 1 << 40  # the numbers below are those of models

_shard_places: dict[int, tuple[int, int]] = {}  # of shards, by id: the number of the model, and that in the model


def whole_tensors(shards: list[Any], keep: bool) -> list[Any]:
    """Return sharded tensors whole, on the CPU, or nothing of them. Collective: every rank."""
    wholes = []
    for shard in shards:
        whole = shard.detach().to(torch.device(shard.device_mesh.device_type)).full_tensor()
        wholes.append(whole.cpu() if keep else None)
    return wholes


def follow_model(model: nn.Module, number: int) -> None:
    """Let `state_dict()` give whole tensors, on the CPU, and let the model load them, also as a part of another one."""

    def gather(module: nn.Module, state: MutableMapping[str, Any], prefix: str, metadata: Any) -> None:
        if not any(is_sharded_tensor(value) for value in state.values()):
            return
        arrive(STATE, number, "state_dict()")
        shards = _shards_of(module)
        whole = dict(zip(map(id, shards), whole_tensors(shards, keep=True)))
        for name, parameter in nn.Module.named_parameters(module, remove_duplicate=False):
            if is_sharded_tensor(state.get(prefix + name)):
                state[prefix + name] = whole[id(parameter)]

    def shard(module: nn.Module, state: MutableMapping[str, Any], prefix: str, *rest: Any) -> None:
        note_change()
        for name, parameter in nn.Module.named_parameters(module, remove_duplicate=False):
            if prefix + name in state:
                state[prefix + name] = shard_like(state[prefix + name], parameter)

    _shard_places.update({id(shard): (number, place) for place, shard in enumerate(_shards_of(model))})
    model.register_state_dict_post_hook(gather)
    model.register_load_state_dict_pre_hook(shard)


def help_with_state(model: nn.Module) -> None:
    """Take part in `state_dict()` of another rank."""
    whole_tensors(_shards_of(model), keep=False)


def _shards_of(model: nn.Module) -> list[Any]:
    return [parameter for parameter in all_parameters(model) if is_sharded_tensor(parameter)]


@functools.cache
def follow_optimizers() -> None:
    """Let optimizers of sharded parameters give whole states, load them, and be counted."""
    Optimizer.state_dict = functools.wraps(_own_state)(_state_dict)  # type: ignore
    Optimizer.load_state_dict = functools.wraps(_own_load)(_load_state_dict)  # type: ignore
    register_optimizer_step_post_hook(_note_step)


_own_state, _own_load = Optimizer.state_dict, Optimizer.load_state_dict


def _state_dict(optimizer: Any) -> Any:
    state = _own_state(optimizer)
    number = _offered(optimizer)
    if number is None:
        return state
    arrive(STATE, number, "optimizer.state_dict()")
    wholes = iter(whole_tensors(_shards_in(state), keep=True))
    return _map_shards(state, lambda shard: next(wholes))


def _load_state_dict(optimizer: Any, state_dict: Any) -> None:
    if _offered(optimizer) is not None:
        note_change()
        state_dict = shard_optimizer_state(state_dict, optimizer)
    _own_load(optimizer, state_dict)


def _offered(optimizer: Any) -> int | None:
    """Return a number of an optimizer of sharded parameters that is the same on all ranks, None for another one."""
    parameters = _parameters(optimizer)
    if not any(is_sharded_tensor(parameter) for parameter in parameters):
        return None
    places = [_shard_places.get(id(parameter)) for parameter in parameters]
    number = FIRST_OPTIMIZER + crc32(f"{type(optimizer).__name__} {places}".encode())
    offer(number, optimizer, {STATE: _help_with_optimizer})
    return number


def _help_with_optimizer(optimizer: Any) -> None:
    whole_tensors(_shards_in(_own_state(optimizer)), keep=False)


def _parameters(optimizer: Any) -> list[Any]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _shards_in(state: Any) -> list[Any]:
    found: list[Any] = []
    _map_shards(state, found.append)
    return found


def _map_shards(value: Any, function: Any) -> Any:
    def of_entry(entry: Any, path: tuple[Any, ...]) -> Any:
        return function(entry) if is_sharded_tensor(entry) else map_entries(entry, path, of_entry)

    return of_entry(value, ())


def _note_step(optimizer: Any, args: Any, kwargs: Any) -> None:
    """Count a step on shards, with what of it must be the same on all ranks: its numbers, and what had a gradient."""
    if _offered(optimizer) is not None:
        groups = [
            [(name, float(value)) for name, value in sorted(group.items()) if isinstance(value, (int, float))]
            for group in optimizer.param_groups
        ]
        note_change(repr((groups, [parameter.grad is not None for parameter in _parameters(optimizer)])))
