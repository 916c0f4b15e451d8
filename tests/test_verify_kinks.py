"""Numbers that are zero apart from rounding do not decide about gradients while tracing."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from retrofit.verify.trace.computation.operators import OperatorTrace

KINKED: dict[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "relu in place": lambda: nn.ReLU(inplace=True),
    "relu6": nn.ReLU6,
    "relu6 in place": lambda: nn.ReLU6(inplace=True),
    "leaky relu": nn.LeakyReLU,
    "prelu": lambda: nn.PReLU(dtype=torch.float64),
}


@pytest.mark.parametrize("name", KINKED)
def test_the_gradient_at_a_kink_does_not_depend_on_the_order_of_the_samples(name: str) -> None:
    """The mean of the last BatchNorm is zero, so that what was padded becomes plus or minus 1e-17 or so."""
    there, back = gradients(KINKED[name](), torch.arange(8)), gradients(KINKED[name](), torch.arange(8).flip(0))
    assert apart(there, back) > 0.01, "without the trace one process differs from itself"
    with OperatorTrace(lambda event: None, True, list):
        there, back = gradients(KINKED[name](), torch.arange(8)), gradients(KINKED[name](), torch.arange(8).flip(0))
    assert apart(there, back) < 1e-12


def gradients(kinked: nn.Module, order: torch.Tensor) -> list[torch.Tensor]:
    """Return the gradients of the layers before the kink, for the same samples in this order."""
    torch.manual_seed(0)
    first, second = nn.Conv2d(3, 8, 3, bias=False), nn.Conv2d(8, 16, 1, bias=False)
    layers = [first, nn.BatchNorm2d(8), nn.ZeroPad2d(1), second, nn.BatchNorm2d(16), kinked]
    net = nn.Sequential(*layers).double()
    samples, wanted = torch.randn(8, 3, 6, 6).double()[order], torch.randn(8, 16, 6, 6).double()[order]
    (net(samples) - wanted).pow(2).mean().backward()
    return [parameter.grad for layer in layers[:5] for parameter in layer.parameters()]


def apart(there: list[torch.Tensor], back: list[torch.Tensor]) -> float:
    return max(float((a - b).norm() / b.norm()) for a, b in zip(there, back))
