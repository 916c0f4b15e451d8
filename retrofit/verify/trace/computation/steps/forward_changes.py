"""Parameters that a forward pass changes in place before the first step: `max_norm`, an initialisation by data."""

from __future__ import annotations

import weakref
from collections.abc import Sequence

import torch
from torch import nn

from retrofit.distributed.ddp.gradients import in_backward
from retrofit.verify.trace.computation.fingerprint import bit_hashes
from retrofit.verify.trace.computation.operators import untraced
from retrofit.verify.trace.events import ChangedInForward

MOST_CALLS = 3  # of each model that are looked at


class ForwardChanges:
    """Keeps the hashes that parameters have before the first forward pass with gradients that changes them."""

    def __init__(self) -> None:
        self._calls: weakref.WeakKeyDictionary[nn.Module, int] = weakref.WeakKeyDictionary()
        self._called: nn.Module | None = None
        self._before: dict[int, str] = {}  # by the id of the parameter, while a pass is run
        self._changed: dict[int, str] = {}
        self._is_over = False

    def before_call(self, model: nn.Module) -> None:
        if self._is_over or not torch.is_grad_enabled() or in_backward() or self._calls.get(model, 0) >= MOST_CALLS:
            return
        self._calls[model] = self._calls.get(model, 0) + 1
        self._called, self._before = model, _hashes(model)

    def after_call(self, model: nn.Module) -> None:
        if self._called is not model:
            return
        for key, after in _hashes(model).items():
            if self._before.get(key, after) != after:
                self._changed.setdefault(key, self._before[key])
        self._called, self._before = None, {}

    def before_first_step(self, optimizer: int, parameters: Sequence[torch.Tensor]) -> ChangedInForward | None:
        """Return which parameters of an optimizer were changed, if some were."""
        self._is_over = True
        places = [place for place, one in enumerate(parameters) if id(one) in self._changed]
        hashes = [self._changed[id(parameters[place])] for place in places]
        return ChangedInForward(optimizer, places, hashes) if places else None


def _hashes(model: nn.Module) -> dict[int, str]:
    """Return the hash of each parameter that this process holds as a whole."""
    held = [one for one in model.parameters() if type(one) is nn.Parameter and not one.is_meta]
    held = [one for one in held if one.layout is torch.strided and one.untyped_storage().nbytes()]
    with untraced(), torch.no_grad():
        return dict(zip(map(id, held), bit_hashes(held)))
