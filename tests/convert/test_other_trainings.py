"""Functions that train, and that the script never calls: a training of another script, or an older one."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import converted

SCRIPT = """\
import torch
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset

OTHER

def fit(loader, model, optimizer):
    for (x,) in loader:
        optimizer.zero_grad()
        model(x).mean().backward()
        optimizer.step()


def run(fold):
    loader = DataLoader(TensorDataset(torch.randn(16, 3)), 4, shuffle=True)
    model = nn.Linear(3, 1)
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    fit(loader, model, optimizer)
    return 1


def simple():
    print(run(0))


if __name__ == "__main__":
    simple()
"""
OTHERS = {
    "of folds": """\

def folds():
    total = 0
    for fold in range(3):
        total += run(fold)
    print(total)
""",
    "by LBFGS": """\

def second_order(loader, model):
    optimizer = optim.LBFGS(model.parameters())
    for (x,) in loader:
        def closure():
            optimizer.zero_grad()
            loss = model(x).mean()
            loss.backward()
            return loss
        optimizer.step(closure)
""",
    "of a batch's samples with each other": """\

def contrast(epoch, loader, models, optimizer):
    for (x,) in loader:
        optimizer.zero_grad()
        z = models[0](x)
        torch.mm(z, z.t()).mean().backward()
        optimizer.step()
""",
    "in a method of a class that nothing makes": """\

class Distiller:
    def __init__(self, loader):
        self.loader, self.models = loader, [nn.Linear(3, 1)]

    def distil(self, optimizer):
        for (x,) in self.loader:
            optimizer.zero_grad()
            (self.models[0](x) - self.models[1](x)).mean().backward()
            optimizer.step()
""",
}


@pytest.mark.parametrize("other", OTHERS)
def test_a_training_that_is_not_called_changes_nothing(tmp_path: Path, other: str) -> None:
    alone = converted(tmp_path, SCRIPT.replace("OTHER\n", ""))
    text = OTHERS[other]
    written = [line.strip() for line in text.splitlines()]
    lines = converted(tmp_path, SCRIPT.replace("OTHER\n", text))
    assert [line for line in lines if line and line not in written] == [
        line for line in alone if line and line not in written
    ]
    assert "model = rd.distribute_model(model)" in lines


def test_without_a_call_of_any_the_one_that_is_there_is_converted(tmp_path: Path) -> None:
    text = SCRIPT.replace("OTHER\n", "").partition("if __name__")[0]
    assert "model = rd.distribute_model(model)" in converted(tmp_path, text)
