"""Losses, gradients and weights of every step."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from retrofit.verify.trace.computation.fingerprint import bit_hashes, joint_hash, norm_and_projection, whole
from retrofit.verify.trace.computation.models import ModelTrace
from retrofit.verify.trace.computation.operators import untraced
from retrofit.verify.trace.data.loaders import LoaderTrace
from retrofit.verify.trace.events import (
    BackwardCall,
    Fingerprint,
    InitialWeights,
    OptimizerFound,
    OptimizerStep,
    ParametersAdded,
    WeightsBeforeStep,
)
from retrofit.verify.trace.recorder import Recorder, own_errors_recorded
from retrofit.verify.trace.runtime import batch_weight

from .by_hand import StepsByHand
from .forward_changes import ForwardChanges
from .gradients_left import GradientsLeft
from .parameters import given_parameters, gpu_of, norms, of_gradient, of_parameters
from .unsynced import UnsyncedForwards
from .zero import install_zero


class StepTrace:
    """Watches backward calls and every torch.optim.Optimizer of a process."""

    def __init__(
        self,
        recorder: Recorder,
        models: ModelTrace,
        loaders: LoaderTrace,
        stop_before_first_step: bool,
    ) -> None:
        self.recorder, self.models, self.loaders = recorder, models, loaders
        self.stop_before_first_step = stop_before_first_step
        self.optimizers: list[Any] = []
        self._orders: list[list[int]] = []  # of the parameters of each optimizer
        self.on_backward: Callable[[], None] = lambda: None
        self.on_step: Callable[[], None] = lambda: None  # before it
        self.on_gradient: Callable[[torch.Tensor], None] | None = None  # before it is recorded
        self.unsynced: UnsyncedForwards | None = None  # on one of several processes
        self.changes = ForwardChanges()
        self._losses: list[float] = []
        self._gradients: list[Fingerprint | None] = []
        self._left = GradientsLeft()
        self._outer: Any = None  # the optimizer whose step is being made
        self.by_hand = StepsByHand(self._before_step, self._after_step, lambda: models.models)
        self._norms: dict[int, list[float]] = {}  # of the parameters of an optimizer, after its last step

    def install(self) -> None:
        self._left.install()
        register_optimizer_step_pre_hook(lambda optimizer, args, kwargs: self._begin(optimizer))
        register_optimizer_step_post_hook(lambda optimizer, args, kwargs: self._end(optimizer))
        install_zero(self._begin, self._end)
        backward = torch.autograd.backward

        @functools.wraps(backward)
        def traced_backward(tensors: Any, *args: Any, **kwargs: Any) -> None:
            if not isinstance(tensors, (torch.Tensor, tuple, list)):
                tensors = tuple(tensors)  # of a generator, which gives its items once
            with own_errors_recorded(), untraced():
                given = [tensors] if isinstance(tensors, torch.Tensor) else tensors
                roots = [root for root in given if isinstance(root, torch.Tensor)]  # others are nodes of the graph
                loss = batch_weight() * sum(float(root.detach().sum()) for root in roots)
                self.by_hand.close()
                if not self._left.has_optimizers():
                    self.by_hand.note_loss(roots)
                self._losses.append(loss)
                self.recorder.record(BackwardCall(loss))
            backward(tensors, *args, **kwargs)
            with own_errors_recorded(), untraced(), torch.no_grad():
                self._left.note()
            with own_errors_recorded():
                self.on_backward()

        torch.autograd.backward = traced_backward

    def trained(self) -> set[int]:
        """Return the ids of the parameters of the optimizers that have made a step."""
        return {id(parameter) for optimizer in self.optimizers for parameter in given_parameters(optimizer)}

    def _is_empty(self, optimizer: Any) -> bool:
        """Return whether a step trains nothing: torch makes one to fill an optimizer's state before it is loaded."""
        return not self._losses and all(group.get("lr", 0.0) == 0.0 for group in optimizer.param_groups)

    def _begin(self, optimizer: Any) -> None:
        """A step begins, maybe in the step of another optimizer that is built on this one: that one alone counts."""
        if self._outer is None or self._outer is optimizer or not _is_stepping(self._outer):
            self._outer = optimizer
            self._before_step(optimizer)

    def _end(self, optimizer: Any) -> None:
        if self._outer is optimizer:
            self._outer = None
            self._after_step(optimizer)

    def _before_step(self, optimizer: Any) -> None:
        if self._is_empty(optimizer):
            return
        with own_errors_recorded(), untraced(), torch.no_grad():
            if not any(optimizer is known for known in self.optimizers):
                self.optimizers.append(optimizer)
                self._describe(optimizer)
            self._describe_added(optimizer)
            self._describe_changed(optimizer)
            if self.on_gradient is not None:
                for parameter in self._parameters(optimizer):
                    if parameter.grad is not None:
                        self.on_gradient(parameter.grad)
            self._gradients = [of_gradient(parameter) for parameter in self._parameters(optimizer)]
            left = self._left.by(self._number_of(optimizer), self._parameters(optimizer))
            if left is not None:
                self.recorder.record(left)
            self._note_unsynced(optimizer)
        with own_errors_recorded():
            self.on_step()
        if self.stop_before_first_step or self.loaders.is_without_end(self._number_of(optimizer)):
            raise SystemExit(0)

    def _describe(self, optimizer: Any) -> None:
        number, given = len(self.optimizers) - 1, list(given_parameters(optimizer))
        names = self.models.names_of(given)
        order = self.models.in_order(given)
        self._orders.append(order)
        parameters, names = [given[place] for place in order], [names[place] for place in order]
        shapes = [list(parameter.shape) for parameter in parameters]
        base_lr = [float(group["initial_lr"]) if "initial_lr" in group else None for group in optimizer.param_groups]
        self.recorder.record(
            OptimizerFound(number, type(optimizer).__name__, names, shapes, gpu_of(parameters), base_lr)
        )
        self.recorder.record(InitialWeights(number, *of_parameters(parameters)))
        changed = self.changes.before_first_step(number, parameters)
        if changed is not None:
            self.recorder.record(changed)

    def _describe_added(self, optimizer: Any) -> None:
        number, given = self._number_of(optimizer), list(given_parameters(optimizer))
        order = self._orders[number]
        added = list(range(len(order), len(given)))
        if added:
            order.extend(added)
            names = self.models.names_of([given[place] for place in added], first=added[0])
            self.recorder.record(ParametersAdded(number, names))

    def _describe_changed(self, optimizer: Any) -> None:
        """Record parameters that something else than the optimizer has changed: a clamp, an average in a forward."""
        number, parameters = self._number_of(optimizer), self._parameters(optimizer)
        if number in self._norms and norms(parameters) != self._norms[number]:
            self.recorder.record(WeightsBeforeStep(number, self.recorder.step, *of_parameters(parameters)))

    def _note_unsynced(self, optimizer: Any) -> None:
        """Record which parameters the step trains on gradients that DDP was told not to average."""
        if self.unsynced is not None:
            number = self._number_of(optimizer)
            found = self.unsynced.before_step(number, self.recorder.step, self._parameters(optimizer))
            if found is not None:
                self.recorder.record(found)

    def _after_step(self, optimizer: Any) -> None:
        if self._is_empty(optimizer):
            return
        number = self._number_of(optimizer)
        with own_errors_recorded(), untraced(), torch.no_grad():
            self.recorder.record(self._finished_step(optimizer, number))
            self._norms[number] = norms(self._parameters(optimizer))
        self.recorder.step += 1
        self._losses = []
        self.loaders.mark_step(number)

    def _finished_step(self, optimizer: Any, number: int) -> OptimizerStep:
        parameters = self._parameters(optimizer)
        norms = [value[0] for value in self._gradients if value is not None]
        buffers = {name: whole(buffer) for name, buffer in self.models.buffers().items()}
        fingerprints, parameter_hash, parameter_hashes = of_parameters(parameters)
        return OptimizerStep(
            optimizer=number,
            number=self.recorder.step,
            lr=[float(group["lr"]) for group in optimizer.param_groups if "lr" in group],
            losses=self._losses,
            rows=self.loaders.rows(),
            gradients=self._gradients,
            gradient_norm=sum(norm * norm for norm in norms) ** 0.5,
            parameters=fingerprints,
            parameter_hash=parameter_hash,
            parameter_hashes=parameter_hashes,
            buffers={name: norm_and_projection(buffer) for name, buffer in buffers.items()},
            buffer_hash=joint_hash(bit_hashes(list(buffers.values()))),
            dtype=str(parameters[0].dtype).replace("torch.", "") if parameters else "none",
        )

    def _number_of(self, optimizer: Any) -> int:
        return next(number for number, known in enumerate(self.optimizers) if known is optimizer)

    def _parameters(self, optimizer: Any) -> list[torch.Tensor]:
        """Return the parameters in the order in which they were described."""
        order, given = self._orders[self._number_of(optimizer)], list(given_parameters(optimizer))
        return [given[place] for place in order if place < len(given)]


def _is_stepping(optimizer: Any) -> bool:
    """Return whether a step of an optimizer is being made: one that has raised an error is not."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if code.co_argcount and frame.f_locals.get(code.co_varnames[0]) is optimizer:
            return True
        frame = frame.f_back
    return False
