"""Whether this rank is at a batch of an evaluation that the other ranks do not see: nothing may wait for them then."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch import nn

from .sync_batchnorm import CPUSyncBatchNorm

_depth = 0


def is_sharing() -> bool:
    """Return whether batches of `share_batches` are being used."""
    return _depth > 0


def while_sharing(batches: Iterable[Any]) -> Iterator[Any]:
    """Yield batches of this rank alone."""
    global _depth
    _depth += 1
    try:
        yield from batches
    finally:
        _depth -= 1


@contextmanager
def own_statistics(module: nn.Module) -> Iterator[None]:
    """Let synchronised BatchNorm layers in training mode take the statistics of this rank's batch, as one process does.

    In evaluation mode they wait for nobody.
    """
    waiting = [layer for layer in module.modules() if is_synchronised(layer) and layer.training]
    for layer in waiting:
        layer.forward = partial(nn.modules.batchnorm._BatchNorm.forward, layer)  # type: ignore[method-assign,arg-type]
    try:
        yield
    finally:
        for layer in waiting:
            del layer.forward


def is_synchronised(layer: nn.Module) -> bool:
    return isinstance(layer, (nn.SyncBatchNorm, CPUSyncBatchNorm))
