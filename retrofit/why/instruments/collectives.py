"""Collective calls that the script or a layer makes by itself, outside of DistributedDataParallel."""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.distributed as dist

from retrofit.why.marks import BEGIN, END, Marks

CALLS = (
    *("all_reduce", "broadcast", "reduce", "all_gather", "gather", "scatter", "reduce_scatter", "all_to_all"),
    *("all_gather_into_tensor", "reduce_scatter_tensor", "all_to_all_single", "barrier", "monitored_barrier"),
    *("all_gather_object", "gather_object", "broadcast_object_list", "scatter_object_list"),
)
CALL = "collective "  # before the name of the call


def watch_collectives(marks: Marks) -> None:
    """Mark each collective call that waits for the others, with the bytes of its first tensor; the outermost one."""
    depth = [0]
    for name in CALLS:
        original = getattr(dist, name, None)
        if original is not None:
            traced = _traced(name, original, marks, depth)
            setattr(dist, name, traced)
            if getattr(dist.distributed_c10d, name, None) is original:
                setattr(dist.distributed_c10d, name, traced)


def _traced(name: str, original: Any, marks: Marks, depth: list[int]) -> Any:
    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        if depth[0] or kwargs.get("async_op") or not dist.is_initialized():
            return original(*args, **kwargs)
        depth[0] += 1
        size = _num_bytes(args, kwargs)
        marks.add(BEGIN, CALL + name, size)
        try:
            return original(*args, **kwargs)
        finally:
            marks.add(END, CALL + name, size)
            depth[0] -= 1

    return call


def _num_bytes(args: tuple[Any, ...], kwargs: dict[str, Any]) -> float:
    tensors = (value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor))
    first = next(tensors, None)
    return 0.0 if first is None else float(first.nbytes)
