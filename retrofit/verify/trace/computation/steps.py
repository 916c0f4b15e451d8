"""Losses, gradients and weights of every optimizer step."""

from __future__ import annotations

import functools
import os
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from retrofit.verify.trace.data.loaders import LoaderTrace
from retrofit.verify.trace.events import (
    BackwardCall,
    BackwardGradients,
    Fingerprint,
    GradientClip,
    InitialWeights,
    OptimizerFound,
    OptimizerStep,
    ParametersAdded,
    Record,
    WeightsBeforeStep,
)
from retrofit.verify.trace.recorder import Recorder, own_errors_recorded
from retrofit.verify.trace.runtime import batch_weight

from .fingerprint import bit_hashes, joint_hash, norm_and_projection, whole
from .models import ModelTrace
from .operators import untraced

FIRST_STEPS = 2  # of each optimizer, in which is looked for what happens to gradients before the step
ONE_FACTOR = 1e-6  # relative: of gradients that are multiplied by one number


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
        self._losses: list[float] = []
        self._gradients: list[Fingerprint | None] = []
        self._left = GradientsLeft()
        self._norms: dict[int, list[float]] = {}  # of the parameters of an optimizer, after its last step

    def install(self) -> None:
        self._left.install()
        register_optimizer_step_pre_hook(self._before_step)
        register_optimizer_step_post_hook(self._after_step)
        backward = torch.autograd.backward

        @functools.wraps(backward)
        def traced_backward(tensors: Any, *args: Any, **kwargs: Any) -> None:
            if not isinstance(tensors, (torch.Tensor, tuple, list)):
                tensors = tuple(tensors)  # of a generator, which gives its items once
            with own_errors_recorded(), untraced():
                given = [tensors] if isinstance(tensors, torch.Tensor) else tensors
                roots = [root for root in given if isinstance(root, torch.Tensor)]  # others are nodes of the graph
                loss = batch_weight() * sum(float(root.detach().sum()) for root in roots)
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
        return {id(parameter) for optimizer in self.optimizers for parameter in _given_parameters(optimizer)}

    def _is_empty(self, optimizer: Any) -> bool:
        """Return whether a step trains nothing: torch makes one to fill an optimizer's state before it is loaded."""
        return not self._losses and all(float(group["lr"]) == 0.0 for group in optimizer.param_groups)

    def _before_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
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
            self._gradients = [_of_gradient(parameter) for parameter in self._parameters(optimizer)]
            left = self._left.by(self._number_of(optimizer), self._parameters(optimizer))
            if left is not None:
                self.recorder.record(left)
        with own_errors_recorded():
            self.on_step()
        if self.stop_before_first_step or self.loaders.is_without_end(self._number_of(optimizer)):
            raise SystemExit(0)

    def _describe(self, optimizer: Any) -> None:
        number, given = len(self.optimizers) - 1, list(_given_parameters(optimizer))
        names = self.models.names_of(given)
        order = self.models.in_order(given)
        self._orders.append(order)
        parameters, names = [given[place] for place in order], [names[place] for place in order]
        shapes = [list(parameter.shape) for parameter in parameters]
        base_lr = [float(group["initial_lr"]) if "initial_lr" in group else None for group in optimizer.param_groups]
        self.recorder.record(
            OptimizerFound(number, type(optimizer).__name__, names, shapes, gpu_of(parameters), base_lr)
        )
        self.recorder.record(InitialWeights(number, *_of_parameters(parameters)))

    def _describe_added(self, optimizer: Any) -> None:
        number, given = self._number_of(optimizer), list(_given_parameters(optimizer))
        order = self._orders[number]
        added = list(range(len(order), len(given)))
        if added:
            order.extend(added)
            names = self.models.names_of([given[place] for place in added], first=added[0])
            self.recorder.record(ParametersAdded(number, names))

    def _describe_changed(self, optimizer: Any) -> None:
        """Record parameters that something else than the optimizer has changed: a clamp, an average in a forward."""
        number, parameters = self._number_of(optimizer), self._parameters(optimizer)
        if number in self._norms and _norms(parameters) != self._norms[number]:
            self.recorder.record(WeightsBeforeStep(number, self.recorder.step, *_of_parameters(parameters)))

    def _after_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if self._is_empty(optimizer):
            return
        number = self._number_of(optimizer)
        with own_errors_recorded(), untraced(), torch.no_grad():
            self.recorder.record(self._finished_step(optimizer, number))
            self._norms[number] = _norms(self._parameters(optimizer))
        self.recorder.step += 1
        self._losses = []
        self.loaders.mark_step(number)

    def _finished_step(self, optimizer: Any, number: int) -> OptimizerStep:
        parameters = self._parameters(optimizer)
        norms = [value[0] for value in self._gradients if value is not None]
        buffers = {name: whole(buffer) for name, buffer in self.models.buffers().items()}
        fingerprints, parameter_hash, parameter_hashes = _of_parameters(parameters)
        return OptimizerStep(
            optimizer=number,
            number=self.recorder.step,
            lr=[float(group["lr"]) for group in optimizer.param_groups],
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
        order, given = self._orders[self._number_of(optimizer)], list(_given_parameters(optimizer))
        return [given[place] for place in order if place < len(given)]


class GradientsLeft:
    """Keeps what each backward leaves of this process's gradients, for the first steps of each optimizer."""

    def __init__(self) -> None:
        self._optimizers: list[weakref.ref[Any]] = []
        self._found: dict[int, Fingerprint] = {}  # by the id of the parameter
        self._steps: Counter[int] = Counter()  # by optimizer

    def install(self) -> None:
        build = torch.optim.Optimizer.__init__

        @functools.wraps(build)
        def traced(optimizer: Any, *args: Any, **kwargs: Any) -> None:
            build(optimizer, *args, **kwargs)
            self._optimizers.append(weakref.ref(optimizer))

        torch.optim.Optimizer.__init__ = traced  # type: ignore[method-assign, assignment]

    def note(self) -> None:
        """A backward has ended."""
        if not self._steps or min(self._steps.values()) < FIRST_STEPS:
            known = [optimizer for found in self._optimizers if (optimizer := found()) is not None]
            parameters = [parameter for optimizer in known for parameter in _given_parameters(optimizer)]
            self._found = {id(one): left for one in parameters if (left := _of_own_gradient(one)) is not None}

    def by(self, number: int, parameters: list[torch.Tensor]) -> BackwardGradients | None:
        """Return what the last backward before a step has left, and by what it was multiplied since."""
        self._steps[number] += 1
        if self._steps[number] > FIRST_STEPS:
            return None
        left = [self._found.get(id(parameter)) for parameter in parameters]
        now = [_of_own_gradient(parameter) for parameter in parameters]
        is_sharded = any(hasattr(parameter.grad, "to_local") for parameter in parameters)
        return BackwardGradients(number, left, common_factor(left, now), is_sharded)


def common_factor(before: list[Fingerprint | None], after: list[Fingerprint | None]) -> float | None:
    """Return the number by which all of two or more tensors were multiplied, if it is one."""
    pairs = [(a, b) for a, b in zip(before, after) if a is not None and b is not None and a[0] > 0]
    if len(pairs) < 2:
        return None
    factor = max(b[0] for _, b in pairs) / max(a[0] for a, _ in pairs)
    is_one = all(abs(b[place] - factor * a[place]) <= ONE_FACTOR * b[0] for a, b in pairs for place in (0, 1))
    return factor if is_one else None


def _of_own_gradient(parameter: torch.Tensor) -> Fingerprint | None:
    """Return the fingerprint of the gradient that this rank holds, or of its shard."""
    gradient = parameter.grad
    if gradient is None or gradient.is_sparse:
        return None
    return norm_and_projection(gradient.to_local() if hasattr(gradient, "to_local") else gradient)


def _given_parameters(optimizer: Any) -> Iterator[torch.Tensor]:
    for group in optimizer.param_groups:
        yield from group["params"]


def gpu_of(parameters: list[torch.Tensor]) -> str | None:
    """Return the GPU of the first parameter, by a name that is the same in all processes of the machine."""
    if not parameters or parameters[0].device.type != "cuda":
        return None
    device = parameters[0].device
    uuid = getattr(torch.cuda.get_device_properties(device), "uuid", None)  # since torch 2.4
    return (
        f"GPU {uuid}" if uuid else f"{device} of CUDA_VISIBLE_DEVICES={os.environ.get('CUDA_VISIBLE_DEVICES', 'all')}"
    )


def _of_gradient(parameter: torch.Tensor) -> Fingerprint | None:
    if parameter.grad is None:
        return None
    gradient = whole(parameter.grad)
    return norm_and_projection(gradient.to_dense() if gradient.is_sparse else gradient)


def _norms(parameters: list[torch.Tensor]) -> list[float]:
    """Return the norm of each parameter that is not sharded: it is cheap, and tells whether one changes."""
    own = [one for one in parameters if one.is_floating_point() and not hasattr(one, "full_tensor")]
    return [float(norm) for norm in torch._foreach_norm(own)] if own else []


def _of_parameters(parameters: list[torch.Tensor]) -> tuple[list[Fingerprint], str, list[str]]:
    """Return the fingerprint of each, the hash of all, and the hash of each."""
    parameters = [whole(parameter) for parameter in parameters]
    hashes = bit_hashes(parameters)
    return [norm_and_projection(parameter) for parameter in parameters], joint_hash(hashes), hashes


def record_clipping(record: Record) -> None:
    """Record the norm of all gradients at each call of torch.nn.utils.clip_grad_norm_ and clip_grad_value_."""
    for name in ("clip_grad_norm_", "clip_grad_value_"):
        clip = getattr(torch.nn.utils, name)
        traced = _traced(record, clip)
        for module in (torch.nn.utils, torch.nn.utils.clip_grad):
            setattr(module, name, traced)


def _traced(record: Record, clip: Any) -> Any:
    @functools.wraps(clip)
    def traced(parameters: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(parameters, torch.Tensor):
            parameters = list(parameters)
        with untraced(), torch.no_grad():
            norm = _norm([parameters] if isinstance(parameters, torch.Tensor) else parameters)
        record(GradientClip(norm))
        return clip(parameters, *args, **kwargs)

    return traced


def _norm(parameters: Iterable[torch.Tensor]) -> float:
    gradients = [whole(one.grad) for one in parameters if one.grad is not None]
    norms = [float((one.to_dense() if one.is_sparse else one).double().norm()) for one in gradients]
    squares = [norm * norm for norm in norms]  # of a large number a power is an error, a product infinite
    return float(sum(squares) ** 0.5)
