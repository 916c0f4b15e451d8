"""Recompute activations in backward instead of keeping them: less memory for more computation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial

from torch import nn
from torch.utils.checkpoint import checkpoint


def recompute_layers(layers: Iterable[nn.Module]) -> None:
    """Let each of `layers` keep its inputs alone in training and run again in backward, in place.

    Names, parameters and results stay as they are; BatchNorm statistics are updated once. A layer inside another one
    that is recomputed needs no more of it and is left alone.
    """
    layers = list(layers)
    inner = {id(part) for layer in layers for part in layer.modules() if part is not layer}
    for layer in layers:
        if id(layer) not in inner:
            layer.forward = partial(_forward, layer, layer.forward)  # type: ignore[method-assign]


def _forward(layer: nn.Module, forward, *args, **kwargs):  # type: ignore[no-untyped-def]
    if not layer.training:
        return forward(*args, **kwargs)
    contexts = partial(_contexts, layer)
    return checkpoint(forward, *args, use_reentrant=False, context_fn=contexts, **kwargs)


def _contexts(layer: nn.Module) -> tuple[AbstractContextManager, AbstractContextManager]:
    return nullcontext(), _without_statistics(layer)


@contextmanager
def _without_statistics(layer: nn.Module) -> Iterator[None]:
    """Let running statistics count the batch once: what the second run adds goes into copies."""
    norms = [part for part in layer.modules() if isinstance(part, nn.modules.batchnorm._BatchNorm)]
    kept = [dict(norm._buffers) for norm in norms]
    for norm in norms:
        norm._buffers.update({name: None if b is None else b.clone() for name, b in norm._buffers.items()})
    try:
        yield
    finally:
        for norm, buffers in zip(norms, kept):
            norm._buffers.update(buffers)
