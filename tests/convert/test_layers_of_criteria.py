"""A criterion has the layers that it is made of, not those of the model that has computed what it is given."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import conversion

SCRIPT = """\
import torch
from torch import nn
from torch.autograd import Variable
from torch.utils.data import DataLoader, TensorDataset


class Criterion(nn.Module):
    def __init__(self, real=1.0):
        super().__init__()
        self.real = real
        self.loss = LOSS

    def target(self, x):
        kept = KEPT
        return torch.full_like(kept, self.real)

    def __call__(self, x):
        return self.loss(x, self.target(x)).mean()


class Plain:
    def __init__(self):
        self.criterion = Criterion()

    def of(self, net, fake):
        return self.criterion(net.forward(fake))


class Other(Plain):
    def __init__(self):
        super().__init__()
        self.criterion = Criterion(0.0)


class Steps:
    def __init__(self, kind):
        self.net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 4))
        self.head = nn.Sequential(nn.Linear(4, 1), nn.Sigmoid())
        self.optimizer = torch.optim.SGD([*self.net.parameters(), *self.head.parameters()], lr=0.1)
        self.losses = Other() if kind else Plain()

    def take(self, z):
        self.z = Variable(z)
        self.fake = self.net.forward(self.z)
        self.loss = self.losses.of(self.head, self.fake)
        self.optimizer.zero_grad()
        self.loss.backward()
        self.optimizer.step()


torch.manual_seed(0)
loader = DataLoader(TensorDataset(torch.randn(64, 3)), batch_size=8)
steps = Steps(0)
for (z,) in loader:
    steps.take(z)
"""
KEPT = ["Variable(x.data)", "torch.clamp(x, max=1)", "torch.nn.functional.relu(x)", "torch.Tensor.float(x)"]


@pytest.mark.parametrize("kept", KEPT)
def test_what_a_criterion_is_given_stays_outside_its_layers(kept: str, tmp_path: Path) -> None:
    text = SCRIPT.replace("KEPT", kept).replace("LOSS", "nn.BCELoss(reduction='none')")
    assert not [finding for finding in conversion(tmp_path, text).findings if finding.code == "RF214"]


def test_the_layers_of_a_criterion_are_seen(tmp_path: Path) -> None:
    loss = "nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))"
    text = SCRIPT.replace("KEPT", "x").replace("LOSS", loss).replace("self.loss(x, self.target(x))", "self.loss(x)")
    assert [finding.code for finding in conversion(tmp_path, text).findings if finding.code == "RF214"]
