"""See through the wrappers that parallel training puts around a model: the module itself, and names without prefix."""

from __future__ import annotations

import copyreg
from collections.abc import Iterator, Mapping
from typing import Any

from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

# What wrappers put before parameter names: DDP and DataParallel, torch.compile, FSDP1.
WRAPPER_PREFIXES = ("module.", "_orig_mod.", "_fsdp_wrapped_module.")


def unwrap_model(model: nn.Module) -> nn.Module:
    """Return the user's own module inside DDP, DataParallel, DeepSpeed and torch.compile, in whatever order."""
    while True:
        if isinstance(model, (DistributedDataParallel, DataParallel)) or getattr(type(model), "is_transparent", False):
            model = model._modules["module"]  # type: ignore[assignment]
        elif "_orig_mod" in model._modules:
            model = model._modules["_orig_mod"]  # type: ignore[assignment]
        else:
            return model


def all_named_parameters(module: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Return all parameters with their names, also of a module whose own `named_parameters()` lists a part of them."""
    return nn.Module.named_parameters(module)


def all_parameters(module: nn.Module) -> Iterator[nn.Parameter]:
    """Return all parameters, also of a module whose own `parameters()` lists a part of them."""
    return (parameter for _, parameter in all_named_parameters(module))


class ModuleAttributes(nn.Module):
    """A wrapper, `module` inside, that has the attributes of the user's own module."""

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if "module" not in self.__dict__.get("_modules", {}):
                raise
            return getattr(unwrap_model(self), name)

    def __repr__(self) -> str:
        return repr(unwrap_model(self))


def strip_wrapper_prefixes(state_dict: Mapping[str, Any]) -> dict[str, Any]:
    """Return `state_dict` with the prefixes of wrappers removed from its keys, however many there are."""
    state = dict(state_dict)
    while state:
        prefix = next((p for p in WRAPPER_PREFIXES if all(key.startswith(p) for key in state)), None)
        if prefix is None:
            break
        state = {key[len(prefix) :]: value for key, value in state.items()}
    return state


def reduced_as(module: nn.Module, protocol: Any) -> Any:
    """Return what `__reduce_ex__` of another object returns to be `module` in a file."""
    reduced: Any = module.__reduce_ex__(protocol)
    function, arguments, *state = reduced
    if function is copyreg.__newobj__:  # type: ignore[attr-defined]  # pickle takes it for the object's own class only
        function = arguments[0].__new__
    return function, arguments, *state
