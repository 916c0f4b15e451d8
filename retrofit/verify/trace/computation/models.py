"""The models that the script calls, and the names of their parameters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
        self.on_call: Callable[[nn.Module], None] = lambda model: None
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
            if next(module.parameters(), None) is not None:
                if not any(module is model for model in self.models):
                    self.models.append(module)
                self.on_call(module)
                self._is_forward = True
                self.on_forward(True)

    def _leave(self, module: nn.Module, inputs: Any, output: Any) -> None:
        self._depth -= 1
        if self._depth == 0 and self._is_forward:
            self._is_forward = False
            with own_errors_recorded():
                self.on_forward(False)

    def is_evaluating(self) -> bool:
        """Return whether all models, and some, are in evaluation mode."""
        return bool(self.models) and not any(model.training for model in self.models)

    def name_of(self, parameter: torch.Tensor, number: int) -> str:
        """Return the parameter's name without wrapper prefixes, or its number where no called model holds it."""
        if id(parameter) not in self._names:
            for model in self.models:
                for name, found in model.named_parameters():
                    self._names.setdefault(id(found), plain_name(name))
        return self._names.get(id(parameter), f"parameter {number}")

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
