"""torch's FSDP2 (`fully_shard`), where this torch has it."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import nn


def torch_fsdp() -> Any:
    """Return the module with `fully_shard`. Raises RuntimeError before torch 2.6."""
    import torch.distributed.fsdp as fsdp

    if not hasattr(fsdp, "fully_shard"):
        raise RuntimeError(
            f"strategy fsdp needs torch 2.6 or newer (fully_shard), this is {torch.__version__}; update torch, or use "
            "strategy ddp"
        )
    return fsdp


def is_sharded(model: nn.Module) -> bool:
    """Return whether the parameters of `model` are sharded by FSDP."""
    module = sys.modules.get("torch.distributed.fsdp")
    return hasattr(module, "FSDPModule") and isinstance(model, module.FSDPModule)  # type: ignore[union-attr]
