"""Collective calls that the script or a layer makes by itself, outside of DistributedDataParallel."""

from __future__ import annotations

import functools
import inspect
import sys
import types
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.modules.batchnorm import _BatchNorm

from retrofit.why.marks import BEGIN, END, MOMENT, Marks

# Calls without `async_op`, which tells the others.
OBJECTS = ("all_gather_object", "gather_object", "broadcast_object_list", "scatter_object_list", "monitored_barrier")
BUFFERS = "_broadcast_coalesced"  # of a model, which DistributedDataParallel sends before each forward pass
CALL = "collective "  # before the name of the call


ISSUED = "issued"  # a call that does not wait: the value is its number, as that of the END of the wait
LOOKED_AT = 300  # calls whose callers are looked for
MOST_FRAMES = 12  # between a layer and the call that it makes


def watch_collectives(marks: Marks, facts: dict[str, Any]) -> None:
    """Mark each collective call that waits for the others, and each wait for one that did not; the outermost one.

    The value of a BEGIN is the number of bytes, that of an END the number of the call that is waited for, else 0.
    `facts` get the number of calls that a BatchNorm layer makes, of the first 300.
    """
    watch = _Watch(marks, facts)
    for name in _calls():
        original = getattr(dist, name, None)
        if original is not None:
            traced = _traced(name, original, watch)
            setattr(dist, name, traced)
            if getattr(dist.distributed_c10d, name, None) is original:
                setattr(dist.distributed_c10d, name, traced)
    wait = dist.distributed_c10d.Work.wait

    @functools.wraps(wait)
    def waited(self: Any, *args: Any, **kwargs: Any) -> Any:
        issued = watch.pending.pop(id(self), None)
        if issued is None or watch.depth:
            return wait(self, *args, **kwargs)
        name, size, number = issued
        return watch.during(name, size, number, lambda: wait(self, *args, **kwargs))

    dist.distributed_c10d.Work.wait = waited  # type: ignore[method-assign]


def _calls() -> list[str]:
    """Return the names of the collective calls in this version of torch: those that take `async_op`, and some more."""
    module = dist.distributed_c10d
    public = [name for name in module.__all__ if type(getattr(module, name, None)) is types.FunctionType]
    waiting = [name for name in public if "async_op" in inspect.signature(getattr(module, name)).parameters]
    return [*waiting, *OBJECTS, BUFFERS]


class _Watch:
    """Notes the collective calls of a process."""

    def __init__(self, marks: Marks, facts: dict[str, Any]) -> None:
        self.marks, self.facts = marks, facts
        self.depth = self._seen = self._num_issued = 0
        self.pending: dict[int, tuple[str, float, int]] = {}  # by the identity of the work: name, bytes, number

    def look(self, frame: Any) -> None:
        """Note whether a BatchNorm layer makes the call."""
        self._seen += 1
        if self._seen <= LOOKED_AT and _is_in_batchnorm(frame):
            self.facts["batchnorm_calls"] = self.facts.get("batchnorm_calls", 0) + 1

    def issue(self, name: str, size: float, work: Any) -> Any:
        """Note a call that does not wait. Return its work."""
        self._num_issued += 1
        self.marks.add(MOMENT, ISSUED, self._num_issued)
        self.pending[id(work)] = (name, size, self._num_issued)
        return work

    def during(self, name: str, size: float, number: int, run: Any) -> Any:
        """Run what waits for the others between two marks."""
        self.depth += 1
        self.marks.add(BEGIN, CALL + name, size)
        try:
            return run()
        finally:
            self.marks.add(END, CALL + name, number)
            self.depth -= 1


def _traced(name: str, original: Any, watch: _Watch) -> Any:
    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        if watch.depth or not dist.is_initialized():
            return original(*args, **kwargs)
        watch.look(sys._getframe(1))
        size = _num_bytes(args, kwargs)
        if kwargs.get("async_op"):
            return watch.issue(name, size, original(*args, **kwargs))
        return watch.during(name, size, 0, lambda: original(*args, **kwargs))

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
    """Return the bytes of the largest argument, a tensor or a list of them: of what is gathered, or is reduced."""
    largest = 0
    for value in (*args, *kwargs.values()):
        tensors = value if isinstance(value, (list, tuple)) else [value]
        if tensors and isinstance(tensors[0], torch.Tensor):
            largest = max(largest, sum(tensor.nbytes for tensor in tensors))
    return float(largest)
