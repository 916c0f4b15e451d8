"""Shard parameters, gradients and optimizer state over the ranks: torch's FSDP2 (`fully_shard`)."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from ..ddp.wrapper import DDPWrapper
from ..process.environment import read_environment
from ..process.process_group import get_device, get_world_size, is_distributed
from .converted.torch_fsdp import torch_fsdp
from .layers import choose_layers

SHARDING_STRATEGIES = ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD")
DTYPES = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class MixedPrecision:
    """The dtypes under FSDP: of gathered parameters and computation, of gradients on the wire, of buffers.

    None leaves the model's own. The shards that the optimizer changes, and its state, keep the model's dtype always.
    """

    param_dtype: torch.dtype | None = None
    reduce_dtype: torch.dtype | None = None
    buffer_dtype: torch.dtype | None = None


def FSDPWrapper(
    model: nn.Module,
    sharding_strategy: str = "FULL_SHARD",
    min_num_params: float = 1e6,
    *,
    wrap_layers: Iterable[str] = (),
    mixed_precision: MixedPrecision | None = None,
    cpu_offload: bool = False,
    shard_size: int = 0,
) -> Any:
    """Shard `model` over the ranks, in place, and return it; outside a process group it stays as it is.

    sharding_strategy: FULL_SHARD keeps parameters sharded between uses; SHARD_GRAD_OP keeps them whole from forward to
    backward; NO_SHARD is `DDPWrapper`; HYBRID_SHARD shards within groups of `shard_size` ranks (0: the processes of
    one node) and keeps a replica per group.
    Layers of a class in `wrap_layers` are gathered one by one; without names, parts of at least `min_num_params`
    parameters (see `choose_layers`). cpu_offload: shards and optimizer state live in host memory between uses.

    Parameters become DTensors: make the optimizer afterwards. Names, attributes and methods stay the model's own.
    Rank 0's weights and buffers are every rank's. Collective: every rank, also for every forward, evaluations
    included (see `EvaluationBatches`), and every backward.

    Raises ValueError for an unknown strategy or layer class or a `shard_size` that does not divide the ranks,
    RuntimeError before torch 2.6.
    """
    if sharding_strategy not in SHARDING_STRATEGIES:
        raise ValueError(f"unknown sharding {sharding_strategy!r}; use one of: {', '.join(SHARDING_STRATEGIES)}")
    if not is_distributed():
        return model
    if sharding_strategy == "NO_SHARD":
        return DDPWrapper(model)
    fsdp = torch_fsdp()
    layers = choose_layers(model, wrap_layers, min_num_params)
    precision = mixed_precision or MixedPrecision()
    for tensor in (*model.parameters(), *model.buffers()):
        dist.broadcast(tensor.detach(), src=0)
    options: dict[str, Any] = {
        "mesh": _mesh(sharding_strategy, shard_size),
        "reshard_after_forward": sharding_strategy != "SHARD_GRAD_OP",
    }
    if cpu_offload and get_device().type != "cpu":
        options["offload_policy"] = fsdp.CPUOffloadPolicy()
    policy = fsdp.MixedPrecisionPolicy(param_dtype=precision.param_dtype, reduce_dtype=precision.reduce_dtype)
    _cast_buffers(model, precision.buffer_dtype)
    for norm in _batch_norms(model) if precision.param_dtype is not None else ():
        fsdp.fully_shard(norm, **options)  # in its own dtype, like its running statistics
    for layer in layers:
        fsdp.fully_shard(layer, **options, mp_policy=policy)
    return fsdp.fully_shard(model, **options, mp_policy=policy)


def resolve_dtype(name: str) -> torch.dtype | None:
    """Return the dtype of a flag's value: fp32 (None, the model's own), bf16, fp16, auto = bf16 where supported."""
    if name == "auto":
        has_bf16 = not torch.cuda.is_available() or torch.cuda.is_bf16_supported()
        return torch.bfloat16 if has_bf16 else torch.float16
    return DTYPES[name]


def _mesh(sharding_strategy: str, shard_size: int) -> Any:
    from torch.distributed.device_mesh import init_device_mesh  # type: ignore[import-not-found]  # torch 2.1 lacks it

    world_size, device = get_world_size(), get_device().type
    if sharding_strategy != "HYBRID_SHARD":
        return init_device_mesh(device, (world_size,))
    size = shard_size or read_environment(os.environ).local_world_size
    if size < 1 or world_size % size:
        sizes = ", ".join(str(n) for n in range(1, world_size + 1) if world_size % n == 0)
        raise ValueError(f"--shard_size {size} does not divide the {world_size} ranks; use one of {sizes}")
    return init_device_mesh(device, (world_size // size, size), mesh_dim_names=("replicate", "shard"))


def _batch_norms(model: nn.Module) -> list[nn.Module]:
    return [part for part in model.modules() if isinstance(part, nn.modules.batchnorm._BatchNorm)]


def _cast_buffers(model: nn.Module, dtype: torch.dtype | None) -> None:
    """Cast the buffers that are numbers, except running statistics, in which a low precision would lose small steps."""
    if dtype is None:
        return
    for module in model.modules():
        if not isinstance(module, nn.modules.batchnorm._BatchNorm):
            for name, buffer in module._buffers.items():
                if buffer is not None and buffer.is_floating_point():
                    module._buffers[name] = buffer.to(dtype)
