"""The gradients that each backward leaves of this process, before anything else changes them."""

from __future__ import annotations

import functools
import weakref
from collections import Counter
from typing import Any

import torch

from retrofit.verify.trace.computation.fingerprint import norm_and_projection
from retrofit.verify.trace.events import BackwardGradients, Fingerprint

from .parameters import given_parameters

FIRST_STEPS = 2  # of each optimizer, in which is looked for what happens to gradients before the step
ONE_FACTOR = 1e-6  # relative: of gradients that are multiplied by one number


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

    def has_optimizers(self) -> bool:
        """Return whether the script has built an optimizer."""
        return bool(self._optimizers)

    def note(self) -> None:
        """A backward has ended."""
        if not self._steps or min(self._steps.values()) < FIRST_STEPS:
            known = [optimizer for found in self._optimizers if (optimizer := found()) is not None]
            parameters = [parameter for optimizer in known for parameter in given_parameters(optimizer)]
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
