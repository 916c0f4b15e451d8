"""State of learning rate schedulers and gradient scalers, weights that no optimizer trains, and those evaluated."""

from __future__ import annotations

import functools
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import nn
from torch.optim import lr_scheduler

from retrofit.distributed.ddp.unwrap import unwrap_model
from retrofit.verify.trace.events import EvaluatedModel, Fingerprint, StateBeforeStep, UntrainedWeights, Values
from retrofit.verify.trace.recorder import Recorder

from .fingerprint import norm_and_projection
from .models import plain_name
from .operators import untraced

MOST_NUMBERS = 50  # of a list that is kept
Contents = tuple[tuple[int, int], ...]  # of parameters: how often each was written to, and where it is


class StateTrace:
    """Watches the schedulers and scalers that a process makes, the models that it evaluates, and what it trains not.

    `trained()`: the ids of the parameters that are trained. `models()`: those that were called, in their order.
    """

    def __init__(
        self, recorder: Recorder, trained: Callable[[], set[int]], models: Callable[[], Sequence[nn.Module]]
    ) -> None:
        self.recorder, self.trained, self.models = recorder, trained, models
        self._known: dict[str, weakref.ref[Any]] = {}
        self._recorded: dict[str, Values] = {}
        self._evaluated: dict[int, tuple[int, Contents]] = {}  # by model, with the steps that were made, the last ones
        self._untrained: dict[int, Contents] = {}  # by model, the last ones

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
        with untraced(), torch.no_grad(), suppress(Exception):
            self._note_untrained()

    def _note_untrained(self) -> None:
        trained = self.trained()
        for number, model in enumerate(self.models()):
            found = {name: one for name, one in model.named_parameters() if id(one) not in trained}
            contents = _contents_of(found.values())
            if not found or self._untrained.get(id(model)) == contents or any(map(_is_sharded, found.values())):
                continue
            self._untrained[id(model)] = contents
            weights = [norm_and_projection(one) for one in found.values()]
            self.recorder.record(UntrainedWeights(number, _type_of(model), [*map(plain_name, found)], weights))

    def on_call(self, model: nn.Module) -> None:
        """A model is called: record its weights, without gradients, once in each optimizer step and for each change."""
        if torch.is_grad_enabled() or not self.recorder.step:
            return
        parameters, trained = list(model.parameters()), self.trained()
        place = self.recorder.step, _contents_of(parameters)
        if self._evaluated.get(id(model)) == place:
            return
        self._evaluated[id(model)] = place
        is_trained = any(id(parameter) in trained for parameter in parameters)
        with untraced(), torch.no_grad(), suppress(Exception):
            weights = [_of_own_part(parameter) for parameter in parameters]
            is_sharded = any(map(_is_sharded, parameters))
            self.recorder.record(EvaluatedModel(_type_of(model), weights, is_trained, is_sharded))


def _contents_of(parameters: Iterable[torch.Tensor]) -> Contents:
    """Return what is another one whenever parameters are written to, or get other memory."""
    return tuple((one._version, one.data_ptr()) for one in parameters)


def _type_of(model: nn.Module) -> str:
    return type(unwrap_model(model)).__name__


def _is_sharded(parameter: torch.Tensor) -> bool:
    return hasattr(parameter, "to_local")


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
