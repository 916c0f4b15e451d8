"""The repeated blocks of a model: each is gathered for its own forward and backward only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from torch import nn

from ...process.options import FLAGS, RuntimeFlag, get_option
from ..layers import choose_layers, is_container

FLAGS.setdefault("wrap_layers", RuntimeFlag("wrap_layers", "", "classes whose layers fsdp gathers one by one"))


def sharded_blocks(model: nn.Module) -> list[nn.Module]:
    """Return the parts of `model` that are gathered one by one; the rest is gathered together.

    The layers of the classes in RETROFIT_WRAP_LAYERS (`Block,Bottleneck`). Without it the outermost parts of a class
    that has layers of its own and of which the model has several, as transformer blocks, but for those that have
    weights of another part. Raises ValueError for a class that the model has no layer of.
    """
    names = [name.strip() for name in get_option("wrap_layers").split(",") if name.strip()]
    if names:
        return choose_layers(model, names)
    counts = Counter(type(part) for part in model.modules() if _is_block(part))
    repeated = {kind for kind, count in counts.items() if count > 1}
    outermost = {id(part) for part in _outermost(model, repeated)}
    if not outermost:
        return []
    return [part for part in choose_layers(model, {kind.__name__ for kind in repeated}) if id(part) in outermost]


def _is_block(part: nn.Module) -> bool:
    has_layers = any(True for child in part.children() for _ in child.parameters())
    return has_layers and not is_container(part)


def _outermost(model: nn.Module, kinds: set[type[nn.Module]]) -> Iterator[nn.Module]:
    for child in model.children():
        if type(child) in kinds:
            yield child
        else:
            yield from _outermost(child, kinds)
