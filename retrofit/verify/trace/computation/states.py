"""State of learning rate schedulers and gradient scalers, and the weights of models that no optimizer trains."""

from __future__ import annotations

import functools
import weakref
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
from torch import nn
from torch.optim import lr_scheduler

from retrofit.distributed.ddp.unwrap import unwrap_model
from retrofit.verify.trace.events import EvaluatedModel, Fingerprint, StateBeforeStep, Values
from retrofit.verify.trace.recorder import Recorder

from .fingerprint import norm_and_projection
from .operators import untraced

MOST_NUMBERS = 50  # of a list that is kept


class StateTrace:
    """Watches the schedulers and scalers that a process makes, and the models that it evaluates and does not train."""

    def __init__(self, recorder: Recorder, trained: Callable[[], set[int]]) -> None:
        self.recorder, self.trained = recorder, trained  # the ids of the parameters that are trained
        self._known: dict[str, weakref.ref[Any]] = {}
        self._recorded: dict[str, Values] = {}
        self._evaluated: dict[int, int] = {}  # by model, the steps that were made when it was recorded last

    def install(self) -> None:
        """Know each scheduler and each scaler of torch from now on; those of the script's own that derive from one."""
        scalers = [getattr(module, "GradScaler", None) for module in (getattr(torch, "amp", None), torch.cuda.amp)]
        kinds = [lr_scheduler.LRScheduler, lr_scheduler.ReduceLROnPlateau, *filter(None, scalers)]
        for kind in dict.fromkeys(kinds):
            if "__init__" in vars(kind):
                self._note_made(kind)

    def _note_made(self, kind: Any) -> None:
        build = kind.__init__

        @functools.wraps(build)
        def noted(made: Any, *args: Any, **kwargs: Any) -> None:
            build(made, *args, **kwargs)
            if any(known() is made for known in self._known.values()):
                return  # its class calls the one that it is derived from
            number = sum(name.rpartition(" ")[0] == type(made).__name__ for name in self._known)
            with suppress(TypeError):  # a class with slots
                self._known[f"{type(made).__name__} {number}"] = weakref.ref(made)

        kind.__init__ = noted

    def before_step(self) -> None:
        """An optimizer is about to make a step: record what has changed."""
        for name, known in self._known.items():
            made = known()
            with suppress(Exception):  # of a class of the script's own
                values = {} if made is None else _public_numbers(made)
                if values and self._recorded.get(name) != values:
                    self._recorded[name] = values
                    self.recorder.record(StateBeforeStep(name, values))

    def on_call(self, model: nn.Module) -> None:
        """A model is called: record its weights if nothing trains them, once in each optimizer step."""
        if torch.is_grad_enabled() or self._evaluated.get(id(model)) == self.recorder.step or not self.recorder.step:
            return
        self._evaluated[id(model)] = self.recorder.step
        parameters, trained = list(model.parameters()), self.trained()
        if any(id(parameter) in trained for parameter in parameters):
            return
        with untraced(), torch.no_grad(), suppress(Exception):
            self.recorder.record(
                EvaluatedModel(type(unwrap_model(model)).__name__, [_of_own_part(p) for p in parameters])
            )


def _of_own_part(parameter: torch.Tensor) -> Fingerprint:
    """Return the fingerprint of what this rank holds of a parameter: another rank need not call the model."""
    local: Any = getattr(parameter, "to_local", None)
    return norm_and_projection(parameter if local is None else local())


def _public_numbers(made: Any) -> Values:
    """Return the numbers of a scheduler, without what its class keeps to itself; of a scaler those that it saves."""
    own = made.state_dict() if hasattr(made, "get_growth_factor") else vars(made)
    found: Values = {}
    with untraced():
        for name, value in own.items():
            if not str(name).startswith("_"):
                _add_numbers(found, str(name), value)
    return found


def _add_numbers(found: Values, name: str, value: Any) -> None:
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        value = value.item()
    if isinstance(value, Counter):  # the milestones of a schedule
        value = sorted(value.elements())
    if isinstance(value, (bool, int, float)):
        found[name] = value
    elif isinstance(value, (list, tuple)) and len(value) <= MOST_NUMBERS:
        for number, item in enumerate(value):
            _add_numbers(found, f"{name}/{number}", item)
