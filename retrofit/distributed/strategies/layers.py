"""The layers of a model: what is sharded, gathered and recomputed one by one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from torch import nn

CONTAINERS = (nn.ModuleList, nn.ModuleDict)  # they have no forward of their own


def choose_layers(model: nn.Module, names: Iterable[str] = (), min_num_params: float = 1e6) -> list[nn.Module]:
    """Return the layers of `model`, inner ones before those around them, `model` itself not among them.

    Those of a class in `names`; without names every part with at least `min_num_params` parameters, not
    counting those of the layers inside it. A part that shares parameters with another one is not a layer, nor is an
    nn.Sequential: the model may go through its parts without calling it.

    Raises ValueError for a class that the model has no layer of.
    """
    wanted = set(names)
    if not wanted:
        layers: list[nn.Module] = []
        _by_size(model, min_num_params, layers)
    else:
        layers = [module for module in _inner_first(model) if type(module).__name__ in wanted and module is not model]
        missing = wanted - {type(layer).__name__ for layer in layers}
        if missing:
            known = ", ".join(sorted({type(module).__name__ for module in model.modules()} - {type(model).__name__}))
            raise ValueError(f"--wrap_layers: no layer of class {', '.join(sorted(missing))}; the model has {known}")
    shared = _shared_parameters(model)
    return [layer for layer in layers if not any(id(parameter) in shared for parameter in layer.parameters())]


def _inner_first(module: nn.Module) -> list[nn.Module]:
    return [inner for child in module.children() for inner in _inner_first(child)] + [module]


def _by_size(module: nn.Module, min_num_params: float, layers: list[nn.Module]) -> int:
    """Add the layers in `module` to `layers` and return how many parameters are left outside of them."""
    left = sum(parameter.numel() for parameter in module.parameters(recurse=False))
    for child in module.children():
        rest = _by_size(child, min_num_params, layers)
        if rest >= min_num_params and not is_container(child):
            layers.append(child)
            rest = 0
        left += rest
    return left


def is_container(module: nn.Module) -> bool:
    """Return whether a model may never call this module, but only what is in it."""
    return isinstance(module, CONTAINERS) or type(module).forward is nn.Sequential.forward


def _shared_parameters(model: nn.Module) -> set[int]:
    """Return the ids of the parameters that several modules hold: tied weights."""
    counted = Counter(id(parameter) for module in model.modules() for parameter in module._parameters.values())
    return {key for key, count in counted.items() if count > 1 and key != id(None)}
