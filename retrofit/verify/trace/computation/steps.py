"""What every optimizer step did: the losses before it, the gradients it saw, the parameters it left."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from retrofit.verify.trace.data.loaders import LoaderTrace
from retrofit.verify.trace.recorder import Recorder

from .fingerprint import bit_hashes, joint_hash, norm_and_projection
from .modules import ModelTrace
from .operators import untraced


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
        self._losses: list[float] = []
        self._gradients: list[list[float] | None] = []

    def install(self) -> None:
        register_optimizer_step_pre_hook(self._before_step)
        register_optimizer_step_post_hook(self._after_step)
        backward = torch.autograd.backward

        @functools.wraps(backward)
        def traced_backward(tensors: Any, *args: Any, **kwargs: Any) -> None:
            with untraced():
                roots = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
                loss = _weight_of_batch() * sum(float(root.detach().sum()) for root in roots)
            self._losses.append(loss)
            self.recorder.event("backward", loss=loss)
            backward(tensors, *args, **kwargs)

        torch.autograd.backward = traced_backward

    def _before_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        with untraced(), torch.no_grad():
            if not any(optimizer is known for known in self.optimizers):
                self.optimizers.append(optimizer)
                self._describe(optimizer)
            self._gradients = [_of_gradient(parameter) for parameter in _parameters(optimizer)]
        if self.stop_before_first_step:
            raise SystemExit(0)

    def _describe(self, optimizer: Any) -> None:
        opt, parameters = len(self.optimizers) - 1, list(_parameters(optimizer))
        names = [self.models.name_of(parameter, number) for number, parameter in enumerate(parameters)]
        shapes = [list(parameter.shape) for parameter in parameters]
        self.recorder.event("optimizer", opt=opt, type=type(optimizer).__name__, names=names, shapes=shapes)
        self.recorder.event("initial", opt=opt, **_of_parameters(parameters))

    def _after_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        parameters = list(_parameters(optimizer))
        norms = [value[0] for value in self._gradients if value is not None]
        with untraced(), torch.no_grad():
            buffers = self.models.buffers()
            fields = {
                "lr": [float(group["lr"]) for group in optimizer.param_groups],
                "loss": self._losses,
                "rows": self.loaders.rows(),
                "grad": self._gradients,
                "grad_norm": sum(norm * norm for norm in norms) ** 0.5,
                **_of_parameters(parameters),
                "buffers": {name: norm_and_projection(buffer) for name, buffer in buffers.items()},
                "buffer_hash": joint_hash(bit_hashes(list(buffers.values()))),
                "dtype": str(parameters[0].dtype).replace("torch.", "") if parameters else "none",
            }
        opt = next(i for i, known in enumerate(self.optimizers) if known is optimizer)
        self.recorder.event("step", opt=opt, n=self.recorder.step, **fields)
        self.recorder.step += 1
        self._losses = []
        self.loaders.mark_step()


def _weight_of_batch() -> float:
    """Return how much the script's runtime lets this rank's share of an uneven last batch count, 1 without a runtime.

    The script may have imported a copy of the runtime of its own, which is the one that knows.
    """
    runtime = sys.modules.get("retrofit.distributed.batch_weight")
    return 1.0 if runtime is None else float(runtime.weight_of())


def _parameters(optimizer: Any) -> Iterator[torch.Tensor]:
    for group in optimizer.param_groups:
        yield from group["params"]


def _of_gradient(parameter: torch.Tensor) -> list[float] | None:
    gradient = parameter.grad
    if gradient is None:
        return None
    return norm_and_projection(gradient.to_dense() if gradient.is_sparse else gradient)


def _of_parameters(parameters: list[torch.Tensor]) -> dict[str, Any]:
    hashes = bit_hashes(parameters)
    return {
        "param": [norm_and_projection(parameter) for parameter in parameters],
        "param_hash": joint_hash(hashes),
        "param_hashes": hashes,
    }
