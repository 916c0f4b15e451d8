"""Methods and layers of a DDP model that a training calls itself: `model.encode(x)`, `model.head(z)`."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import nn

from ..data.batch import weight_for_model
from ..evaluation import is_sharing
from .forward_guard import is_running_forward, running_forward, unguard
from .gradients import in_backward, scale_gradients


@contextmanager
def as_forward(module: nn.Module, method: Callable[..., Any]) -> Iterator[None]:
    """Let the next call of `module` run `method`, and those within it the module's own forward again."""
    own = module.__dict__.get("forward")

    def restore() -> None:
        if own is not None:
            module.__dict__["forward"] = own
        else:
            module.__dict__.pop("forward", None)

    def run(*inputs: Any, **kwargs: Any) -> Any:
        restore()
        return method(*inputs, **kwargs)

    module.__dict__["forward"] = run
    try:
        yield
    finally:
        restore()


def enter_through(wrapper: Any, module: nn.Module, names: Collection[str]) -> frozenset[str]:
    """Return the methods among `names`; a layer among them is synchronised where the training runs it by itself.

    "forward" is the module: one that trains itself calls `self(x)`, past the wrapper.
    Raises ValueError for a name that the model does not have.
    """
    methods: set[str] = set()
    for name in names:
        try:
            value: Any = module if name == "forward" else module.get_submodule(name)
        except AttributeError:
            value = getattr(module, name, None)
        if isinstance(value, nn.Module):
            for layer in _run_by_themselves(value):
                unguard(layer)
                runs: list[_Run | None] = []
                layer.register_forward_pre_hook(_BeforeLayer(wrapper, runs), with_kwargs=True)
                layer.register_forward_hook(_AfterLayer(wrapper, runs), always_call=True)
        elif callable(value):
            methods.add(name)
        else:
            raise ValueError(
                f"methods={list(names)} of distribute_model: {type(module).__name__} has no method or layer {name!r}"
            )
    return frozenset(methods)


def _run_by_themselves(layer: nn.Module) -> Iterator[nn.Module]:
    """Yield a layer, or what a container without a forward of its own holds."""
    if isinstance(layer, (nn.ModuleList, nn.ModuleDict)):
        for part in layer.children():
            yield from _run_by_themselves(part)
    else:
        yield layer


class _Run(NamedTuple):
    """A run of a layer that has begun: the weight of its batch, and the forward pass that it is."""

    weight: float
    forward: AbstractContextManager[None]


class _Hook:
    """A hook of a layer that, outside the model's forward, is one. In a file, and in a copy, it does nothing."""

    def __init__(self, wrapper: Any, runs: list[_Run | None]) -> None:
        self.wrapper: Callable[[], Any] = weakref.ref(wrapper)
        self.runs = runs  # that have begun, None for one that is part of another

    def __reduce__(self) -> Any:
        return getattr, (nullcontext(), "__exit__")  # takes three arguments, returns None


class _BeforeLayer(_Hook):
    def __call__(self, layer: nn.Module, inputs: Any, kwargs: Any) -> Any:
        wrapper = self.wrapper()
        if wrapper is None or not _is_entered(layer):
            self.runs.append(None)
            return None
        weight = weight_for_model(inputs, kwargs)
        run = _Run(weight, running_forward())
        run.forward.__enter__()
        self.runs.append(run)
        wrapper.expect_backward()
        return scale_gradients((inputs, kwargs), 1.0 / weight) if weight not in (0.0, 1.0) else None


class _AfterLayer(_Hook):
    """Runs after an error in the layer, too: there is no output then."""

    def __call__(self, layer: nn.Module, inputs: Any, output: Any) -> Any:
        wrapper = self.wrapper()
        run = self.runs.pop() if self.runs else None
        if run is None:
            return None
        run.forward.__exit__(None, None, None)
        return None if output is None or wrapper is None else wrapper._gradient_sync.watch(output, run.weight)


def _is_entered(layer: nn.Module) -> bool:
    is_trained = layer.training and torch.is_grad_enabled() and not is_running_forward() and not in_backward()
    return is_trained and not is_sharing()
