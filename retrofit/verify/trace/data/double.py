"""Batches in double precision."""

from __future__ import annotations

from typing import Any

import torch


def in_float64(batch: Any) -> Any:
    """Return `batch` with its float32 tensors in double precision; containers are rebuilt, other things kept."""
    if isinstance(batch, torch.Tensor):
        return batch.double() if batch.dtype == torch.float32 else batch
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(in_float64(part) for part in batch))
    if isinstance(batch, (list, tuple)):
        return type(batch)(in_float64(part) for part in batch)
    if isinstance(batch, dict):
        copied = {key: in_float64(value) for key, value in batch.items()}
        return copied if type(batch) is dict else _refilled(batch, copied)
    return batch


def _refilled(batch: Any, content: dict) -> Any:
    for key, value in content.items():
        batch[key] = value
    return batch
