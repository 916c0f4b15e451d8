"""Buckets of gradients in DistributedDataParallel: when each is full, and when its all-reduce is done."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from retrofit.why.marks import Marks

FULL, DONE = "bucket", "bucket done"
_HOOKED = "_retrofit_why_hooked"


def watch_buckets(marks: Marks, facts: dict[str, Any]) -> None:
    """Stamp the communication hook of each model. The script's own is kept; without one, torch's all-reduce is it.

    A model with a hook of compiled code (`_register_builtin_comm_hook`) has no stamps.
    """
    register, forward = DistributedDataParallel.register_comm_hook, DistributedDataParallel.forward
    builtin = DistributedDataParallel._register_builtin_comm_hook

    @functools.wraps(register)
    def registered(self: Any, state: Any, hook: Any) -> None:
        self.__dict__[_HOOKED] = True
        facts["comm_hook"] = getattr(hook, "__name__", type(hook).__name__)
        register(self, state, _stamped(hook, marks))

    @functools.wraps(builtin)
    def registered_builtin(self: Any, *args: Any) -> None:
        self.__dict__[_HOOKED] = True
        facts["comm_hook"] = "built in"
        builtin(self, *args)

    @functools.wraps(forward)
    def forwarded(self: Any, *inputs: Any, **kwargs: Any) -> Any:
        if not self.__dict__.get(_HOOKED):
            self.__dict__[_HOOKED] = True
            register(self, None, _stamped(allreduce_hook, marks))
            facts["ddp"] = _options_of(self)
        return forward(self, *inputs, **kwargs)

    DistributedDataParallel.register_comm_hook = registered  # type: ignore[method-assign]
    DistributedDataParallel._register_builtin_comm_hook = registered_builtin  # type: ignore[method-assign]
    DistributedDataParallel.forward = forwarded  # type: ignore[method-assign]


def _stamped(hook: Any, marks: Marks) -> Any:
    @functools.wraps(hook)
    def stamped(state: Any, bucket: Any) -> Any:
        num_bytes = bucket.buffer().nbytes
        marks.add_of_any_thread(FULL, num_bytes)
        future = hook(state, bucket)
        if bucket.buffer().is_cuda:  # what follows runs in a stream that waits for the all-reduce
            return future.then(lambda done: _noted(marks, num_bytes, done.value()))
        future.add_done_callback(lambda _: marks.add_of_any_thread(DONE, num_bytes))
        return future

    return stamped


def _noted(marks: Marks, num_bytes: float, value: Any) -> Any:
    marks.add_of_any_thread(DONE, num_bytes)
    return value


def _powersgd_bytes(parameter: torch.Tensor) -> int:
    """Return what PowerSGD of rank 2 sends of a gradient: of a matrix two rows and two columns, if that is less."""
    whole, rows = parameter.numel(), len(parameter) if parameter.dim() > 1 else 0
    sent = min(whole, 2 * (rows + whole // rows)) if rows else whole
    return sent * parameter.element_size()


def _options_of(model: DistributedDataParallel) -> dict[str, Any]:
    sizes = [
        parameter.numel() * parameter.element_size() for parameter in model.parameters() if parameter.requires_grad
    ]
    return {
        "bucket_mib": model.bucket_bytes_cap / 2**20,
        "gradient_bytes": sum(sizes),
        "powersgd_bytes": sum(_powersgd_bytes(p) for p in model.parameters() if p.requires_grad),
        "find_unused_parameters": bool(model.find_unused_parameters),
        "static_graph": bool(getattr(model, "static_graph", False)),
        "gradient_as_bucket_view": bool(model.gradient_as_bucket_view),
        "float32": all(p.dtype == torch.float32 for p in model.parameters() if p.requires_grad),
    }
