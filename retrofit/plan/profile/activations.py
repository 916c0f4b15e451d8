"""Activations: tensors that a forward pass keeps for the backward pass, counted in one step."""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd.graph import saved_tensors_hooks


class Activations:
    """Counts the storages that autograd saves from `begin` to `end`, each once, without those of parameters."""

    def __init__(self) -> None:
        self.num_bytes = 0
        self._storages: set[int] = set()
        self._kept: list[torch.Tensor] = []  # as long as it counts: a freed storage's address is used again
        self._hooks: Any = None

    def begin(self, parameters: list[torch.nn.Parameter]) -> None:
        self._storages = {parameter.untyped_storage().data_ptr() for parameter in parameters}
        self._hooks = saved_tensors_hooks(self._pack, lambda tensor: tensor)
        self._hooks.__enter__()

    def end(self) -> None:
        if self._hooks is not None:
            self._hooks.__exit__()
        self._hooks, self._kept, self._storages = None, [], set()

    def _pack(self, tensor: torch.Tensor) -> torch.Tensor:
        if isinstance(tensor, torch.nn.Parameter) or tensor.layout != torch.strided:
            return tensor
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self._storages:
            self._storages.add(storage.data_ptr())
            self._kept.append(tensor.detach())
            self.num_bytes += storage.nbytes()
        return tensor.detach() if tensor.grad_fn is None or tensor.is_leaf else tensor
