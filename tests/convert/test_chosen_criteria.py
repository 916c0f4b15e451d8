"""A setting chooses between a criterion of torch and one of the project: both are read."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import converted

SCRIPT = """\
import os

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def masked(output, target):
    valid = (target != 0).float()
    valid /= torch.mean(valid)
    return torch.mean(torch.abs(output - target) * valid)


class Masked(nn.Module):
    def forward(self, output, target):
        return masked(output, target)


class Called:
    def __call__(self, output, target):
        return masked(output, target)


def named(name):
    if name == "masked":
        return Masked()
    return nn.L1Loss()


class Trainer:
    def __init__(self, name):
        if name == "masked":
            self.criterion = Masked()
        else:
            self.criterion = nn.L1Loss()


name = os.environ["NAME"]
loader = DataLoader(TensorDataset(torch.randn(16, 4), torch.randn(16, 2)), batch_size=4)
model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
criterion = CHOSEN
for x, y in loader:
    loss = criterion(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
CHOSEN = {
    "called": 'Called() if name == "masked" else nn.HuberLoss()',
    "module": 'nn.MSELoss() if name == "mse" else Masked()',
    "functions": 'masked if name == "masked" else F.l1_loss',
    "table": '{"masked": Masked(), "l1": nn.L1Loss()}[name]',
    "returned": "named(name)",
    "kept": "Trainer(name).criterion",
}


@pytest.mark.parametrize("form", CHOSEN)
def test_the_criterion_of_the_project_is_read_too(tmp_path: Path, form: str) -> None:
    lines = converted(tmp_path, SCRIPT.replace("CHOSEN", CHOSEN[form]))
    assert "valid /= rd.loss.batch_mean(torch.mean(valid))" in lines


SHOWN = SCRIPT.replace(
    """\
    valid = (target != 0).float()
    valid /= torch.mean(valid)
    return torch.mean(torch.abs(output - target) * valid)
""",
    """\
    common = (output * target).sum(0)
    both = (output + target).sum(0)
    return 1 - torch.mean(common / both)
""",
)


@pytest.mark.parametrize("form", CHOSEN)
def test_a_loss_is_reduced_where_it_is_shown_though_one_choice_is_that_of_all_ranks(tmp_path: Path, form: str) -> None:
    lines = converted(tmp_path, SHOWN.replace("CHOSEN", CHOSEN[form]) + '    print("loss %.4f" % loss)\n')
    assert "common = rd.loss.batch_sum((output * target).sum(0))" in lines
    assert 'print("loss %.4f" % rd.reduce_loss(loss))' in lines
