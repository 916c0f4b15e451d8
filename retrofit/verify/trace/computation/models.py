"""The models that the script calls, and the names of their parameters."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from retrofit.distributed.ddp.unwrap import WRAPPER_PREFIXES
from retrofit.verify.trace.recorder import own_errors_recorded


class ModelTrace:
    """Remembers the modules with parameters that are called from outside any other module."""

    def __init__(self, on_forward: Callable[[bool], None]) -> None:
        self.on_forward = on_forward
        self.before_call: Callable[[], None] = lambda: None
        self.on_inputs: Callable[[Any], None] = lambda inputs: None
        self.on_call: Callable[[nn.Module], None] = lambda model: None
        self.after_call: Callable[[nn.Module], None] = lambda model: None
        self.models: list[nn.Module] = []
        self._depth = 0
        self._is_forward = False
        self._names: dict[int, str] = {}

    def install(self) -> None:
        register_module_forward_pre_hook(self._enter)
        register_module_forward_hook(self._leave, always_call=True)

    def forget(self) -> None:
        """Let go of the models of a training that is over: a wrapper among them keeps its process group alive."""
        self.models.clear()
        self._names.clear()

    def _enter(self, module: nn.Module, inputs: Any) -> None:
        self._depth += 1
        if self._depth > 1:
            return
        with own_errors_recorded():
            self.before_call()
            if next(module.parameters(), None) is not None:
                if not any(module is model for model in self.models):
                    self.models.append(module)
                self.on_call(module)
                self._is_forward = True
                self.on_forward(True)
                self.on_inputs(inputs)

    def _leave(self, module: nn.Module, inputs: Any, output: Any) -> None:
        self._depth -= 1
        if self._depth == 0 and self._is_forward:
            self._is_forward = False
            with own_errors_recorded():
                self.on_forward(False)
                self.after_call(module)

    def is_evaluating(self) -> bool:
        """Return whether all models, and some, are in evaluation mode."""
        return bool(self.models) and not any(model.training for model in self.models)

    def names_of(self, parameters: Sequence[torch.Tensor], first: int = 0) -> list[str]:
        """Return the parameters' names without wrapper prefixes.

        What no called model holds has the name of the variable of a running function that does, as in `logit_scale`,
        `criterion.weight` or `heads[1]`, or its number, counted from `first`.
        """
        if any(id(parameter) not in self._names for parameter in parameters):
            for model in self.models:
                for name, found in model.named_parameters():
                    self._names.setdefault(id(found), plain_name(name))
        names = dict(self._names)
        if any(id(parameter) not in names for parameter in parameters):
            for name, tensor in tensors_in_variables(sys._getframe(1)):
                names.setdefault(id(tensor), name)
        return [names.get(id(one), f"parameter {first + place}") for place, one in enumerate(parameters)]

    def in_order(self, parameters: Sequence[torch.Tensor]) -> list[int]:
        """Return the places of parameters that have names as the models hold them, then those of the others.

        An optimizer's groups may come from sets, whose order is another one in each process.
        """
        known = {key: place for place, key in enumerate(self._names)}
        return sorted(range(len(parameters)), key=lambda place: known.get(id(parameters[place]), len(known) + place))

    def buffers(self) -> dict[str, torch.Tensor]:
        """Return every buffer of the models once, by name."""
        found: dict[str, torch.Tensor] = {}
        seen: set[int] = set()
        for model in self.models:
            for name, buffer in model.named_buffers():
                if id(buffer) in seen:
                    continue
                seen.add(id(buffer))
                name = plain_name(name)
                while name in found:
                    name += "'"
                found[name] = buffer
        return found


OF_FABRIC = "_forward_module."  # the prefix in the module that Lightning Fabric's setup returns


def plain_name(name: str) -> str:
    """Return a parameter's name without the prefixes that wrappers add."""
    while True:
        prefix = next((prefix for prefix in (*WRAPPER_PREFIXES, OF_FABRIC) if name.startswith(prefix)), None)
        if prefix is None:
            return name
        name = name[len(prefix) :]


OWN_PACKAGES = ("torch", "retrofit", "accelerate", "lightning", "lightning_fabric")  # their variables name nothing
FEW = 100  # items of a list or dictionary that are looked at


def tensors_in_variables(frame: FrameType | None) -> list[tuple[str, torch.Tensor]]:
    """Return the tensors with gradients that variables of a function and of its callers hold, each with its name.

    The outermost function comes first, and an item of a list after what a variable or an attribute holds itself.
    """
    frames: list[FrameType] = []
    while frame is not None:
        frames.insert(0, frame)
        frame = frame.f_back
    variables = [
        item for one in filter(of_the_script, frames) for item in list(one.f_locals.items()) if item[0].isidentifier()
    ]
    found = [tensor for name, value in variables for tensor in _tensors_in(name, value, 2)]
    return sorted(found, key=lambda tensor: "[" in tensor[0])


def of_the_script(frame: FrameType) -> bool:
    """Return whether a function that is running is not one of torch or of the trace."""
    return not _is_own(str(frame.f_globals.get("__name__", "")))


def _is_own(module: str) -> bool:
    return module.split(".")[0] in OWN_PACKAGES


def _tensors_in(name: str, value: Any, depth: int) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        if value.requires_grad:
            yield name, value
    elif isinstance(value, nn.Module):
        yield from ((f"{name}.{plain_name(inner)}", found) for inner, found in value.named_parameters())
    elif depth:
        for inner, item in items_of(name, value):
            yield from _tensors_in(inner, item, depth - 1)


def items_of(name: str, value: Any) -> list[tuple[str, Any]]:
    """Return what a list, a dictionary or an object of a class of the script holds, each with its name."""
    if isinstance(value, (list, tuple)):
        return [(f"{name}[{place}]", item) for place, item in enumerate(value[:FEW])]
    if isinstance(value, dict):
        return [(f"{name}[{key!r}]", value[key]) for key in list(value)[:FEW] if isinstance(key, (str, int))]
    attributes = getattr(value, "__dict__", None)
    is_class_or_module = isinstance(value, (type, type(sys)))
    if isinstance(attributes, dict) and not is_class_or_module and not _is_own(type(value).__module__):
        return [(f"{name}.{key}", item) for key, item in list(attributes.items())[:FEW]]
    return []
