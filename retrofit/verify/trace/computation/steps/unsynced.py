"""Forward passes of DDP models that leave the gradients of their backward unaveraged: inside `no_sync`, say."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.nn.parallel import DistributedDataParallel

from retrofit.distributed.ddp.gradients import in_backward
from retrofit.verify.trace.events import UnsyncedForward
from retrofit.verify.trace.recorder import own_errors_recorded

Place = Callable[[], "str | None"]


class UnsyncedForwards:
    """Remembers of each DDP model whether its last forward pass with gradients was one without averaging."""

    def __init__(self, place: Place) -> None:
        self._place = place  # returns the line of the script that is being run
        self._contexts: weakref.WeakKeyDictionary[nn.Module, str | None] = weakref.WeakKeyDictionary()
        self._last: weakref.WeakKeyDictionary[nn.Module, tuple[str | None, bool]] = weakref.WeakKeyDictionary()

    def install(self) -> None:
        register_module_forward_pre_hook(self._enter)
        leave_out = DistributedDataParallel.no_sync

        @contextmanager
        @functools.wraps(leave_out)
        def no_sync(model: DistributedDataParallel) -> Iterator[None]:
            with own_errors_recorded():
                self._contexts[model] = self._place()
            try:
                with leave_out(model):
                    yield
            finally:
                self._contexts.pop(model, None)

        DistributedDataParallel.no_sync = no_sync  # type: ignore[method-assign, assignment]

    def _enter(self, module: nn.Module, inputs: Any) -> None:
        if not isinstance(module, DistributedDataParallel) or not torch.is_grad_enabled() or in_backward():
            return
        with own_errors_recorded():
            if module.require_backward_grad_sync:
                self._last.pop(module, None)
                return
            in_no_sync = self._contexts.get(module)
            self._last[module] = in_no_sync or self._place(), in_no_sync is not None

    def before_step(self, optimizer: int, number: int, parameters: Sequence[torch.Tensor]) -> UnsyncedForward | None:
        """Return which of the parameters of a step had their last forward pass without averaging, if some had."""
        found: dict[int, tuple[str | None, bool]] = {}  # by place
        for model, how in self._last.items():
            inside = {id(parameter) for parameter in model.parameters()}
            found.update({place: how for place, one in enumerate(parameters) if id(one) in inside})
        if not found:
            return None
        where, in_no_sync = found[min(found)]
        return UnsyncedForward(optimizer, number, sorted(found), where, in_no_sync)
