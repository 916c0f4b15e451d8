"""Facts about the models of a script: parameters, layers, optimizer state, and when each gradient is ready."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

from retrofit.distributed.strategies.converted.blocks import sharded_blocks
from retrofit.why.marks import Marks

READY = "ready"  # a mark: the gradient with this number is there


class ModelFacts:
    """The models that the script calls and the optimizers that it steps, found while it runs."""

    def __init__(self) -> None:
        self._models: list[nn.Module] = []  # the outermost ones, in the order of their first call
        self._parts: set[int] = set()  # ids of all modules in them
        self._optimizers: list[Optimizer] = []
        self._hook: Any = None
        self._marks: Marks | None = None
        self.rounds = 0  # steps of the optimizer that stepped first: others take turns with it

    def watch(self) -> None:
        """Begin to look, before the script makes its models."""
        self._hook = register_module_forward_pre_hook(self._called)
        register_optimizer_step_post_hook(self._stepped)

    def note_gradients(self, marks: Marks) -> None:
        """Mark from now on when the gradient of each trained parameter is ready, of later optimizers, too."""
        self._marks = marks
        self._watch_gradients(0)

    def is_compiled(self) -> bool:
        """Return whether a model is one of torch.compile."""
        return any(hasattr(part, "_orig_mod") for model in self._models for part in model.modules())

    def end_search(self) -> None:
        """Look for models no longer."""
        self._hook.remove()

    def _watch_gradients(self, first: int) -> None:
        marks = self._marks
        if marks is None:
            return
        for number, parameter in enumerate(self.trained()[first:], first):
            parameter.register_post_accumulate_grad_hook(
                lambda _, number=number: marks.add_of_any_thread(READY, number)
            )

    def trained(self) -> list[nn.Parameter]:
        """Return the parameters that an optimizer changes, each once."""
        found = {
            id(p): p for optimizer in self._optimizers for group in optimizer.param_groups for p in group["params"]
        }
        return [parameter for parameter in found.values() if parameter.requires_grad]

    def facts(self) -> dict[str, Any]:
        """Return what the predictions need of the models, as JSON has it; sizes in bytes."""
        numbers = {id(parameter): number for number, parameter in enumerate(self.trained())}
        modules = [part for model in self._models for part in model.modules()]
        return {
            "gradients": [parameter.numel() * parameter.element_size() for parameter in self.trained()],
            "elements": [parameter.numel() for parameter in self.trained()],
            "frozen_bytes": sum(_bytes(p) for p in self._parameters() if id(p) not in numbers),
            "buffer_bytes": sum(_bytes(buffer) for model in self._models for buffer in model.buffers()),
            "batchnorm_channels": [m.num_features for m in modules if isinstance(m, nn.modules.batchnorm._BatchNorm)],
            "optimizers": sorted({type(optimizer).__name__ for optimizer in self._optimizers}),
            "optimizer_bytes": sum(_state_bytes(optimizer) for optimizer in self._optimizers),
            "layers": [sorted(layer) for layer in self._layers(numbers)],
        }

    def _parameters(self) -> Iterator[nn.Parameter]:
        seen: set[int] = set()
        for model in self._models:
            for parameter in model.parameters():
                if id(parameter) not in seen:
                    seen.add(id(parameter))
                    yield parameter

    def _layers(self, numbers: dict[int, int]) -> Iterator[list[int]]:
        """Yield the gradients of what FSDP gathers at once: each repeated block, and the rest of each model."""
        taken: set[int] = set()
        for model in self._models:
            try:
                blocks = sharded_blocks(model)
            except ValueError:
                blocks = []
            for part in (*blocks, model):
                own = {numbers[id(p)] for p in part.parameters() if id(p) in numbers} - taken
                taken |= own
                if own:
                    yield list(own)
        if rest := set(numbers.values()) - taken:
            yield list(rest)

    def _called(self, module: nn.Module, inputs: Any) -> None:
        if id(module) in self._parts or isinstance(module, torch.jit.ScriptModule):
            return
        if any(parameter.requires_grad for parameter in module.parameters()):
            self._models = [model for model in self._models if not _is_part(model, module)]
            self._models.append(module)
            self._parts |= {id(part) for part in module.modules()}

    def _stepped(self, optimizer: Optimizer, *unused: Any) -> None:
        if not any(optimizer is known for known in self._optimizers):
            num_known = len(self.trained())
            self._optimizers.append(optimizer)
            self._watch_gradients(num_known)
        self.rounds += optimizer is self._optimizers[0]


def _is_part(part: nn.Module, whole: nn.Module) -> bool:
    return any(part is one for one in whole.modules())


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _state_bytes(optimizer: Optimizer) -> int:
    values = [value for state in optimizer.state.values() if isinstance(state, dict) for value in state.values()]
    return sum(_bytes(value) for value in values if isinstance(value, torch.Tensor) and value.dim())
