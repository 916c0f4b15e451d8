"""A copy of a state that shares nothing with the original, for a checkpoint that is written in the background.

Every kind of state is copied, not only the tensors: a training changes dicts, lists and objects in place, too. The
copy is made by pickling, because torch.save pickles the same objects afterwards: what it would write is what is copied.
"""

from __future__ import annotations

import io
import pickle
from typing import Any

import torch

from ..collectives import raise_together


def copy_together(value: Any) -> Any:
    """Return `host_copy(value)`; when a rank's value cannot be copied, every rank raises. Collective: every rank."""
    copied, error = None, None
    try:
        copied = host_copy(value)
    except Exception as failure:  # an object's own pickling may raise anything
        error = ValueError(
            f"the checkpoint holds what cannot be pickled ({type(failure).__name__}: {failure}); save plain values, "
            "tensors and state_dicts"
        )
        error.__cause__ = failure
    raise_together(error)
    return copied


def host_copy(value: Any) -> Any:
    """Return a copy of `value` with every tensor in it on the CPU, in memory of its own.

    Names of one tensor (tied weights) stay names of one; a view takes only its own elements along. Raises what pickling
    raises, for an object that torch.save could not write either.
    """
    tensors: dict[Any, torch.Tensor] = {}

    class Pickler(pickle.Pickler):
        def persistent_id(self, item: Any) -> Any:
            if not isinstance(item, torch.Tensor):
                return None
            memory = _memory_of(item)
            if memory not in tensors:
                tensors[memory] = item.detach().to("cpu", copy=True)
            return memory

    class Unpickler(pickle.Unpickler):
        def persistent_load(self, memory: Any) -> torch.Tensor:
            return tensors[memory]

    file = io.BytesIO()
    Pickler(file, protocol=5).dump(value)
    file.seek(0)
    return Unpickler(file).load()


def _memory_of(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Return what is equal for tensors that are names of the same elements."""
    if tensor.layout is not torch.strided or not tensor.numel():
        return (id(tensor),)
    return str(tensor.device), tensor.data_ptr(), str(tensor.dtype), tuple(tensor.shape), tensor.stride()
