"""Find layers that run in training past the wrapper's forward: their gradients would not be synchronised."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from ..process_group import is_distributed
from .sync_batchnorm import is_synchronised
from .unwrap import unwrap_model

_forward_depth = 0
_guarded: weakref.WeakSet[nn.Module] = weakref.WeakSet()


def run_alone(function: Callable[..., Any], model: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """Return `function(model, ...)` for one that runs the model itself: a summary, a graph, an export.

    This rank may do so alone: `function` gets your own module, no layer of it waits for other ranks, and nothing is
    trained by it. Synchronised BatchNorm uses its running statistics meanwhile. Outside a group it is the plain call.
    """
    if not is_distributed():
        return function(model, *args, **kwargs)
    module = unwrap_model(model)
    waiting = [layer for layer in module.modules() if is_synchronised(layer) and layer.training]
    for layer in waiting:
        layer.training = False
    try:
        with running_forward():
            return function(module, *args, **kwargs)
    finally:
        for layer in waiting:
            layer.training = True


@contextmanager
def running_forward() -> Iterator[None]:
    global _forward_depth
    _forward_depth += 1
    try:
        yield
    finally:
        _forward_depth -= 1


def guard_layers(module: nn.Module, entered_by_compile: bool) -> None:
    """Watch the module's outermost layers, in containers too: one that runs outside DDP's forward bypasses it."""
    if entered_by_compile:
        return  # a hook that reads global state would break the compiled graph at every layer
    for child in module.children():
        if isinstance(child, (nn.ModuleList, nn.ModuleDict, nn.Sequential)):
            guard_layers(child, entered_by_compile)
        if child not in _guarded:
            _guarded.add(child)
            child.register_forward_pre_hook(_refuse_bypass)


def _refuse_bypass(layer: nn.Module, inputs: Any) -> None:
    if _forward_depth or not layer.training or not torch.is_grad_enabled():
        return
    if layer not in _guarded or _in_backward():  # a deep copy of the model; recomputation by activation checkpointing
        return
    if any(parameter.requires_grad for parameter in layer.parameters()):
        raise RuntimeError(
            f"a {type(layer).__name__} of a DDP model ran in training outside model(...): its gradients would not be "
            "synchronised over ranks; call model(...) and choose the path inside forward(), or, for evaluation, call "
            "it under torch.no_grad() or after model.eval()"
        )


def _in_backward() -> bool:
    graph_task_id = getattr(torch._C, "_current_graph_task_id", None)
    return graph_task_id is not None and graph_task_id() != -1
