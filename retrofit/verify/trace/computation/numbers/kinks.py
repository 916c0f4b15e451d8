"""Numbers that are zero apart from rounding, where the sign decides about a gradient.

A BatchNorm layer after a convolution without bias gives such numbers where its input is padded with zeros: the mean
over the batch is zero, and how it is rounded decides whether ReLU lets the gradient through. Then one process differs
from itself when the samples of its batch have another order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Run = Callable[[tuple, dict], Any]

LEAST = 1e-12  # of the largest number: what is smaller is rounding, in float64
# Called with the gradient and the numbers; the names are those of ReLU, ReLU6 and Hardtanh, LeakyReLU, PReLU.
KINKED = {f"aten::{name}_backward" for name in ("threshold", "hardtanh", "leaky_relu", "_prelu_kernel")}


def decided_at_kinks(func: Any, run: Run) -> Run:
    """Return how to run an operator so that rounding of a zero does not decide about its gradient."""
    if func._schema.name not in KINKED:
        return run

    def decided(args: tuple, kwargs: dict) -> Any:
        if len(args) < 2:
            return run(args, kwargs)
        gradient, numbers, *others = args
        return run((gradient, _without_rounding_of_zero(numbers), *others), kwargs)

    return decided


def _without_rounding_of_zero(numbers: torch.Tensor) -> torch.Tensor:
    if type(numbers) is not torch.Tensor or numbers.dtype is not torch.float64 or not numbers.numel():
        return numbers
    sizes = numbers.abs()
    return numbers.masked_fill(sizes <= LEAST * sizes.max(), 0.0)
