"""Losses that a model returns next to other outputs, and figures that are made of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import conversion, converted
from convert.training_runs import trains_as_one
from verify.projects.launch import Launcher

SCRIPT = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(50, 4, dtype=torch.float64)
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=8)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def forward(self, x, y):
        output = self.layer(x)
        return {"loss": nn.functional.mse_loss(output, y, reduction="mean"), "output": output}


model = Net().double()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for epoch in range(2):
    total = 0
    for step, (x, y) in enumerate(loader):
        STEP
        optimizer.step()
        optimizer.zero_grad()
    print("shown", total.item() / len(loader))
"""
ADDED = "total += loss.detach().double()"
STEPS = {
    "taken out at once": f'loss = model(x, y)["loss"]; {ADDED}; loss.backward()',
    "taken out of a name": f'out = model(x, y); loss = out["loss"]; {ADDED}; loss.backward()',
    "divided for the backward call": f'loss = model(x, y)["loss"]; {ADDED}; loss = loss / 2; loss.backward()',
}


@pytest.mark.parametrize("step", STEPS)
def test_the_loss_is_reduced_where_it_is_added_up(tmp_path: Path, step: str) -> None:
    script = SCRIPT.replace("STEP", STEPS[step].replace("; ", "\n        "))
    assert "total += rd.reduce_loss(loss).detach().double()" in converted(tmp_path, script)


def test_the_figure_is_that_of_one_process(tmp_path: Path, launcher: Launcher) -> None:
    step = STEPS["divided for the backward call"].replace("; ", "\n        ")
    trains_as_one(tmp_path, SCRIPT.replace("STEP", step), launcher)


@pytest.mark.parametrize(
    ("reduction", "step"),
    [
        ("sum", f'loss = model(x, y)["loss"]; {ADDED}; loss.backward()'),
        ("none", f'loss = model(x, y)["loss"]; {ADDED}; loss.backward(torch.ones_like(loss))'),
    ],
)
def test_another_loss_is_not_taken_for_a_mean(tmp_path: Path, reduction: str, step: str) -> None:
    script = SCRIPT.replace("STEP", step.replace("; ", "\n        ")).replace('"mean"', f'"{reduction}"')
    result = conversion(tmp_path, script)
    (text,) = (file.text for file in result.files if file.path.name == "train.py")
    assert "reduce_loss(loss).detach()" not in text
