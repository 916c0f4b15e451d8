"""A criterion that is put into an attribute where it is used, not by the class of the object, is read as well."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import converted

SCRIPT = """\
import argparse
from types import SimpleNamespace

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Dice(nn.Module):
    def forward(self, output, target):
        common = (output * target).sum(0)
        both = (output + target).sum(0)
        return 1 - torch.mean(common / both)


class Parts:
    pass


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.main = nn.Linear(4, 2)

    def forward(self, x):
        return self.main(x).sigmoid()


def fit(held, model, loader, optimizer):
    for x, y in loader:
        loss = held.criterion(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


args = argparse.ArgumentParser().parse_args()
loader = DataLoader(TensorDataset(torch.randn(16, 4), torch.rand(16, 2)), batch_size=4)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
HELD
fit(held, model, loader, optimizer)
"""
HELD = {
    "options": "args.criterion = Dice()\nheld = args",
    "object": "held = Parts()\nheld.criterion = Dice()",
    "model": "model.criterion = Dice()\nheld = model",
    "namespace": "held = SimpleNamespace(criterion=Dice())",
    "namespace later": "held = SimpleNamespace()\nheld.criterion = Dice()",
    "class": "Parts.criterion = Dice()\nheld = Parts",
    "chosen": "args.criterion = nn.MSELoss() if args else Dice()\nheld = args",
}


@pytest.mark.parametrize("form", HELD)
def test_a_criterion_in_an_attribute_is_read(form: str, tmp_path: Path) -> None:
    lines = converted(tmp_path, SCRIPT.replace("HELD", HELD[form]))
    assert "common = rd.loss.batch_sum((output * target).sum(0))" in lines


def test_an_option_of_the_same_name_elsewhere_is_another_attribute(tmp_path: Path) -> None:
    other = "held = SimpleNamespace(criterion=nn.MSELoss())\nother = Parts()\nother.criterion = Dice()"
    lines = converted(tmp_path, SCRIPT.replace("HELD", other))
    assert "common = (output * target).sum(0)" in lines
