"""What a step draws in a loop over positions, as of a decoder, is drawn by each rank for its part of the batch."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import conversion

SCRIPT = """\
import random

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x, steps, rate, teacher):
        for t in LOOP:
            h = self.first(x)
            if DRAW:
                x = x + 1
            else:
                x = h
        return self.last(x)


torch.manual_seed(0)
loader = DataLoader(TensorDataset(torch.randn(22, 4), torch.randint(0, 3, (22,))), 4, shuffle=True)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in loader:
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x, STEPS, 0.5, y), y).backward()
    optimizer.step()
"""
DRAWS = ["rate == 1 or torch.rand(1).item() <= rate", "random.random() < rate"]
POSITIONS = {
    "the longest": ("range(steps)", "max(y)"),
    "the largest number": ("range(steps)", "int(y.max())"),
    "a size": ("range(steps)", "x.size(1)"),
    "a shape": ("range(1, x.shape[1])", "0"),
    "an entry": ("range(steps)", "y[0]"),
    "columns": ("x.t()", "0"),
}
SAMPLES = {
    "numbers": ("range(len(x))", "0"),
    "as many": ("range(steps)", "len(x)"),
    "rows": ("teacher", "0"),
}


def listed(tmp_path: Path, form: tuple[str, str], draw: str) -> list[str]:
    loop, steps = form
    result = conversion(tmp_path, SCRIPT.replace("LOOP", loop).replace("STEPS", steps).replace("DRAW", draw))
    return [finding.message for finding in result.listed if "draws its own" in finding.message]


@pytest.mark.parametrize("draw", DRAWS)
@pytest.mark.parametrize("form", POSITIONS)
def test_a_draw_for_each_position_is_listed(tmp_path: Path, form: str, draw: str) -> None:
    (message,) = listed(tmp_path, POSITIONS[form], draw)
    assert message.endswith("by which it chooses for its part of the batch")


@pytest.mark.parametrize("form", SAMPLES)
def test_a_draw_for_each_sample_is_not(tmp_path: Path, form: str) -> None:
    assert not listed(tmp_path, SAMPLES[form], DRAWS[0])
