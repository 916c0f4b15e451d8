"""A model that is made in the call which hands it on is wrapped where the function gets it."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import converted

SCRIPT = """\
import copy

import torch
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.layer = nn.Linear(width, 1)

    def forward(self, x):
        return self.layer(x)


class Trainer:
    def __init__(self, model, loader):
        self.model, self.loader = model, loader
        self.averaged = copy.deepcopy(model)
        self.optimizer = optim.SGD(model.parameters(), lr=0.1)

    def fit(self):
        for x, y in self.loader:
            self.optimizer.zero_grad()
            nn.functional.mse_loss(self.model(x), y).backward()
            self.optimizer.step()


def build():
    return nn.Linear(4, 1)


def build_named():
    net = Net()
    return net


def make_optimizer(net):
    return optim.SGD(net.parameters(), lr=0.1)


def fit(model, loader, loss=None):
    optimizer = make_optimizer(model)
    for x, y in loader:
        optimizer.zero_grad()
        (loss or nn.functional.mse_loss)(model(x), y).backward()
        optimizer.step()
    return model


torch.manual_seed(0)
x = torch.randn(16, 4)
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), 4)
{line}
"""
LINES = {
    "a function": "net = fit(Net(), loader)",
    "by a keyword": "fit(loader=loader, model=Net().to('cpu'))",
    "layers of torch": "fit(nn.Sequential(nn.Linear(4, 1)), loader, nn.MSELoss())",
    "of a factory": "fit(build(), loader)",
    "of a factory with a name": "fit(build_named(), loader)",
    "a class": "Trainer(Net(), loader).fit()",
}


@pytest.mark.parametrize("kind", LINES)
def test_the_model_is_wrapped_where_a_function_gets_it(tmp_path: Path, kind: str) -> None:
    lines = [line.strip() for line in converted(tmp_path, SCRIPT.format(line=LINES[kind]))]
    wrapped = lines.index("model = rd.distribute_model(model)")
    function = "def __init__(self, model, loader):" if kind == "a class" else "def fit(model, loader, loss=None):"
    assert lines[wrapped - 1] == function
    assert sum("distribute_model(" in line for line in lines) == 1


def test_a_model_that_another_training_returns_is_wrapped_there(tmp_path: Path) -> None:
    probe = """
def pretrain():
    net = nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2), nn.Linear(2, 1))
    optimizer = optim.SGD(net.parameters(), lr=0.1)
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.mse_loss(net(x), y).backward()
        optimizer.step()
    return net


def probe(model):
    head = nn.Linear(1, 1)
    optimizer = optim.SGD(head.parameters(), lr=0.1)
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.mse_loss(head(model(x).detach()), y).backward()
        optimizer.step()


probe(pretrain())
"""
    lines = [line.strip() for line in converted(tmp_path, SCRIPT.format(line=probe))]
    assert [line for line in lines if "distribute_model(" in line] == [
        "net = rd.distribute_model(net)",
        "head = rd.distribute_model(head)",
    ]
