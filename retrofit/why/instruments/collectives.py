"""Collective calls that the script or a layer makes by itself, outside of DistributedDataParallel."""

from __future__ import annotations

import functools
import sys
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.modules.batchnorm import _BatchNorm

from retrofit.why.marks import BEGIN, END, Marks

CALLS = (
    *("all_reduce", "broadcast", "reduce", "all_gather", "gather", "scatter", "reduce_scatter", "all_to_all"),
    *("all_gather_into_tensor", "reduce_scatter_tensor", "all_to_all_single", "barrier", "monitored_barrier"),
    *("all_gather_object", "gather_object", "broadcast_object_list", "scatter_object_list"),
    "_broadcast_coalesced",  # the buffers of a model, which DistributedDataParallel sends before each forward pass
)
CALL = "collective "  # before the name of the call


LOOKED_AT = 300  # calls whose callers are looked for
MOST_FRAMES = 12  # between a layer and the call that it makes


def watch_collectives(marks: Marks, facts: dict[str, Any]) -> None:
    """Mark each collective call that waits for the others, with the bytes of its first tensor; the outermost one.

    `facts` get the number of those that a BatchNorm layer makes, of the first 300.
    """
    depth, seen = [0], [0]

    def look(frame: Any) -> None:
        seen[0] += 1
        if seen[0] <= LOOKED_AT and _is_in_batchnorm(frame):
            facts["batchnorm_calls"] = facts.get("batchnorm_calls", 0) + 1

    for name in CALLS:
        original = getattr(dist, name, None)
        if original is not None:
            traced = _traced(name, original, marks, depth, look)
            setattr(dist, name, traced)
            if getattr(dist.distributed_c10d, name, None) is original:
                setattr(dist.distributed_c10d, name, traced)


def _traced(name: str, original: Any, marks: Marks, depth: list[int], look: Any) -> Any:
    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        if depth[0] or kwargs.get("async_op") or not dist.is_initialized():
            return original(*args, **kwargs)
        depth[0] += 1
        look(sys._getframe(1))
        size = _num_bytes(args, kwargs)
        marks.add(BEGIN, CALL + name, size)
        try:
            return original(*args, **kwargs)
        finally:
            marks.add(END, CALL + name, size)
            depth[0] -= 1

    return call


def _is_in_batchnorm(frame: Any) -> bool:
    """Return whether a call is made by the forward pass of a BatchNorm layer."""
    for _ in range(MOST_FRAMES):
        if frame is None:
            return False
        if isinstance(frame.f_locals.get("self"), _BatchNorm):
            return True
        frame = frame.f_back
    return False


def _num_bytes(args: tuple[Any, ...], kwargs: dict[str, Any]) -> float:
    """Return the bytes of the first tensor, or of the tensors in the first list of them."""
    for value in (*args, *kwargs.values()):
        tensors = value if isinstance(value, (list, tuple)) else [value]
        if tensors and isinstance(tensors[0], torch.Tensor):
            return float(sum(tensor.nbytes for tensor in tensors))
    return 0.0
