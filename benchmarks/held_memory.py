"""Which bytes of a rank are parameters, gradients and optimizer state, found from those that hold them.

Counted is every storage that can be reached from the model's parameters, the optimizer's state, FSDP's state of each
layer and the attributes of DeepSpeed's optimizer (flat buffers, masters, buckets), once each. DDP's buckets live in
C++, and DDP tells their sizes. What a storage is follows from where it was found: a path with "grad" or "ipg"
(DeepSpeed's buckets) in it is a gradient, the model's own parameters and what FSDP gathers for them are parameters, the
rest of what an optimizer holds, float32 masters included, is optimizer state. Activations are reached from none of
these. Collectives' buffers that live within one call only are between two samples.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

ROLES = ("parameters", "gradients", "optimizer")
MAX_DEPTH = 6  # the deepest is a DeepSpeed parameter's fragment of the optimizer state

# Where the classes come from whose attributes are followed; others (meshes, modules, configurations) hold no more.
HOLDERS = ("torch.distributed.fsdp", "torch.optim", "deepspeed.runtime.zero", "deepspeed.utils", "deepspeed.ops")


def held_by_role(model: nn.Module, optimizer: Any) -> dict[str, int]:
    """Return the bytes that this rank holds of each role, now."""
    found: dict[int, tuple[int, str]] = {}
    seen: set[int] = set()
    for parameter in model.parameters():
        _walk(parameter, "parameters", found, seen, 0)
    for module in model.modules():
        if hasattr(module, "_get_fsdp_state"):
            _walk(module._get_fsdp_state()._fsdp_param_group, "parameters", found, seen, 0)
    engine = getattr(model, "engine", None)
    _walk(engine.optimizer if engine is not None else dict(optimizer.state), "optimizer", found, seen, 0)
    held = {role: sum(size for size, kind in found.values() if kind == role) for role in ROLES}
    buckets = _ddp_buckets(model)
    if getattr(model, "gradient_as_bucket_view", False):
        held["gradients"] = max(held["gradients"], buckets)  # the buckets stay when the gradients are dropped
    else:
        held["gradients"] += buckets
    return held


def _walk(thing: Any, role: str, found: dict[int, tuple[int, str]], seen: set[int], depth: int) -> None:
    """Add the storages reached from `thing` to `found`: address -> (bytes, role)."""
    if depth > MAX_DEPTH or id(thing) in seen:
        return
    seen.add(id(thing))
    if isinstance(thing, torch.Tensor):
        local = getattr(thing, "_local_tensor", None)  # of a DTensor: this rank's shard
        if local is not None:
            _walk(local, role, found, seen, depth)
        elif thing.device.type != "meta":
            storage = thing.untyped_storage()
            if storage.nbytes():
                found.setdefault(storage.data_ptr(), (storage.nbytes(), role))
        if thing.is_leaf and thing.grad is not None:
            _walk(thing.grad, "gradients", found, seen, depth)
    if isinstance(thing, dict):
        for key, value in list(thing.items()):
            _walk(value, _role_of(str(key), role) if isinstance(key, str) else role, found, seen, depth + 1)
    elif isinstance(thing, (list, tuple, set, deque)):
        for value in list(thing):
            _walk(value, role, found, seen, depth + 1)
    elif isinstance(thing, torch.Tensor) or type(thing).__module__.startswith(HOLDERS):
        _walk_attributes(thing, role, found, seen, depth)


def _walk_attributes(thing: Any, role: str, found: dict[int, tuple[int, str]], seen: set[int], depth: int) -> None:
    for key, value in list(getattr(thing, "__dict__", {}).items()):
        if key != "_z3_optimizer":  # from a parameter to all of DeepSpeed, where everything would be a parameter
            _walk(value, _role_of(key, role), found, seen, depth + 1)


def _role_of(name: str, role: str) -> str:
    """Return the role of what an attribute or key of this name holds, inside something of `role`."""
    name = name.lower()
    if "grad" in name or "ipg" in name or name in ("reduce_output", "reduce_scatter_input"):
        return "gradients"
    if name in ("_hp_mapping", "hp_fragment", "optim_fragment"):
        return "optimizer"
    if role == "optimizer" and ("bit16" in name or name.startswith("fp16")):
        return "parameters"
    return role


def _ddp_buckets(model: nn.Module) -> int:
    """Return the bytes of the gradient buckets that DDP keeps in C++."""
    if not isinstance(model, DistributedDataParallel):
        return 0
    told = model._get_ddp_logging_data()
    sizes = told.get("rebuilt_bucket_sizes") or told["bucket_sizes"]
    return sum(int(size) for size in sizes.split(","))


class PeakOfStep:
    """The highest sum over the roles in a step, sampled at every layer, forward and backward, and at every gradient.

    `sample` is called by hooks while `is_on`, and by the loop between backward, step and zero_grad.
    """

    def __init__(self, model: nn.Module, optimizer: Any) -> None:
        self.model, self.optimizer = model, optimizer
        self.peak: dict[str, int] = dict.fromkeys(ROLES, 0)
        self.is_on = False
        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(self._after_gradient)
        for module in model.modules():
            if isinstance(module, (nn.Linear, nn.LayerNorm, nn.Conv2d, nn.MultiheadAttention)):
                # Before the hooks that free gathered parameters; in backward after those that gather.
                module.register_forward_hook(self._after_forward, prepend=True)

    def sample(self) -> None:
        held = held_by_role(self.model, self.optimizer)
        if sum(held.values()) > sum(self.peak.values()):
            self.peak = held

    def _after_forward(self, module: nn.Module, inputs: Any, output: Any) -> None:
        if self.is_on:
            self.sample()
            first = output[0] if isinstance(output, tuple) else output
            if first.requires_grad:
                first.register_hook(self._in_backward)

    def _after_gradient(self, parameter: torch.Tensor) -> None:
        if self.is_on:
            self.sample()

    def _in_backward(self, gradient: torch.Tensor) -> None:
        self.sample()
