"""Find layers that run in training past the wrapper's forward: their gradients would not be synchronised."""

from __future__ import annotations

import os
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, redirect_stdout
from typing import Any

import torch
from torch import nn

from ..failure.collective_calls import called_from
from ..process.process_group import is_distributed, is_main_process
from .gradients import in_backward, tensors_in
from .sync_batchnorm import waiting_layers
from .unwrap import unwrap_model

# What other modules add: contexts, made with the model, in which it can run without the other ranks.
running_alone: list[Callable[[nn.Module], AbstractContextManager[Any]]] = []
_forward_depth = 0
_guarded: weakref.WeakSet[nn.Module] = weakref.WeakSet()


def run_alone(function: Callable[..., Any], model: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """Return `function(model, ...)` for one that runs or compiles the model itself: a summary, a graph, an export.

    This rank may do so alone: `function` gets your own module, no layer of it waits for other ranks, nothing is trained
    by it, rank 0 prints. Synchronised BatchNorm uses its running statistics meanwhile. Outside a group: the plain call.
    """
    if not is_distributed():
        return function(model, *args, **kwargs)
    module = unwrap_model(model)
    layers = [(layer, type(layer), layer.training) for layer in waiting_layers(module, always=True)]
    hooks = [(part._forward_hooks, key) for part in module.modules() for key in part._forward_hooks]
    guards = [(held, key, held.pop(key)) for held, key in hooks if isinstance(held[key], RefuseBypass)]
    for layer, kind, _ in layers:  # of which torch.jit.script reads the class
        layer.training, layer.__class__ = False, getattr(layer, "replaced", kind)
    try:
        with ExitStack() as stack, open(os.devnull, "w") as nowhere:
            for context in running_alone:
                stack.enter_context(context(module))
            stack.enter_context(running_forward())
            stack.enter_context(redirect_stdout(sys.stdout if is_main_process() else nowhere))
            return function(module, *args, **kwargs)
    finally:
        for layer, kind, is_training in layers:
            layer.training, layer.__class__ = is_training, kind
        for held, key, hook in guards:  # torch.jit.script takes none
            held[key] = hook


@contextmanager
def running_forward() -> Iterator[None]:
    global _forward_depth
    _forward_depth += 1
    try:
        yield
    finally:
        _forward_depth -= 1


def is_running_forward() -> bool:
    return _forward_depth > 0


def unguard(layer: nn.Module) -> None:
    """Let a layer run outside the model's forward, too: what it does is synchronised otherwise."""
    for part in layer.modules():
        _guarded.discard(part)


def guard_layers(module: nn.Module) -> None:
    """Watch the module's outermost layers, in containers too: one that runs outside DDP's forward bypasses it."""
    for child in module.children():
        if isinstance(child, (nn.ModuleList, nn.ModuleDict, nn.Sequential)):
            guard_layers(child)
        if child not in _guarded and not isinstance(child, torch.jit.ScriptModule):  # which takes no hooks
            _guarded.add(child)
            child.register_forward_hook(RefuseBypass())


class RefuseBypass:
    """A hook after a layer's forward: where that is not part of the model's, training it raises RuntimeError.

    The error comes with the backward pass that reaches the layer: text that is generated with gradients switched on
    trains nothing. A layer that returns no tensor in sight raises at once.
    """

    def __call__(self, layer: nn.Module, inputs: Any, output: Any) -> None:
        is_inside = _forward_depth or in_backward()  # in backward: recomputation by activation checkpointing
        if is_inside or not layer.training or not torch.is_grad_enabled() or layer not in _guarded:
            return
        if not any(parameter.requires_grad for parameter in layer.parameters()):
            return
        frame = called_from(sys._getframe(1))[1]
        refuse = _Refusal(type(layer).__name__, f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}")
        tensors = tensors_in(output)
        if not tensors:
            refuse()
        for tensor in tensors:
            if tensor.requires_grad:
                tensor.register_hook(refuse)

    def __reduce__(self) -> Any:
        """In a file, and in a copy, it is a hook that does nothing and needs nothing of the runtime."""
        return getattr, (nullcontext(), "__exit__")  # which takes any arguments and returns None


class _Refusal:
    """A hook on a gradient that must not come."""

    def __init__(self, kind: str, place: str) -> None:
        self.kind, self.place = kind, place

    def __call__(self, gradient: torch.Tensor | None = None) -> None:
        raise RuntimeError(
            f"{self.place}: {self.kind} of a DDP model ran in training outside model(...), and its gradients would not "
            "be synchronised over ranks; name the method or the layer that is called: rd.distribute_model(model, "
            "methods=['encode']), or, for evaluation, call it under torch.no_grad() or after model.eval()"
        )
