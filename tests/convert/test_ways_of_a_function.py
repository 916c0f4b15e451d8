"""A function with several ways to train, chosen by its arguments: what one way never does is not part of its steps."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.training_runs import trains_as_one
from verify.projects.launch import Launcher

SCRIPT = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_default_dtype(torch.float64)


class Rows(nn.Module):
    name = "rows"

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 3), nn.Linear(3, 4)

    def forward(self, x, last=None):
        return self.second(torch.tanh(self.first(x))), last


class Whole(Rows):
    name = "whole"


def fit(model, loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def run(model, data, training=True):
    measure = nn.MSELoss(reduction="none")
    loader = DataLoader(TensorDataset(data), batch_size=16 if training else len(data))
    if model.name == "rows":
        if training:
            for (x,) in loader:
                y, _ = model(x)
                fit(model, measure(y, x).mean())
            return 0.0, None
        else:
            for (x,) in loader:
                y, _ = model(x)
            return measure(y, x), y
    y, last = model(data)
    loss = measure(y, data)
    if training:
        fit(model, loss.mean())
        return loss.mean().item(), last
    return loss, y


torch.manual_seed(0)
train, test = torch.randn(64, 4), torch.randn(30, 4)
model = CHOSEN()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(3):
    run(model, train)
model.eval()
loss, predicted = run(model, test, training=False)
print("shown", *loss.shape, loss.mean().item(), loss.max().item(), *predicted.sum(1).tolist())
"""


@pytest.mark.parametrize("chosen", ["Rows", "Whole"])
def test_the_evaluation_of_another_way_is_whole(tmp_path: Path, launcher: Launcher, chosen: str) -> None:
    trains_as_one(tmp_path, SCRIPT.replace("CHOSEN", chosen), launcher)
