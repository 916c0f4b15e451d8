"""Models that are trained through methods and layers: the wrapper is told which of them the training calls."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import conversion, converted

SCRIPT = """\
import torch
from torch import nn, optim
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


class Inner(nn.Module):
    def __init__(self):
        super().__init__()
        self.lift = nn.Linear(4, 3)

    def forward(self, x):
        return self.lift(x)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = Inner(), nn.Linear(3, 4)
        self.heads = nn.ModuleDict({"box": nn.Linear(3, 2)})
        self.scale = nn.Parameter(torch.ones(()))

    def encode(self, x):
        return self.encoder(x)

    def decode(self, z):
        return self.decoder(z)

    def forward(self, x):
        return self.decode(self.encode(x))

    def training_step(self, x):
        return self.error(self(x), x)

    def error(self, output, x):
        return F.mse_loss(output, x)

    def scaled(self, z):
        return z * self.scale

    @torch.no_grad()
    def sample(self, n):
        return self.decode(torch.randn(n, 3))


loader = DataLoader(TensorDataset(torch.randn(16, 4)), 4)
model = Net()
optimizer = optim.SGD(model.parameters(), lr=0.1)
for (x,) in loader:
    LOSS
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    model.sample(2)
"""


@pytest.mark.parametrize(
    ("loss", "methods"),
    [
        ("loss = F.mse_loss(model.decode(model.encode(x)), x)", ', methods=["decode", "encode"]'),
        ("loss = model.training_step(x)", ', methods=["training_step"]'),
        ("loss = F.mse_loss(model.decoder(model.encoder(x)), x)", ', methods=["decoder", "encoder"]'),
        ("loss = F.mse_loss(model.decoder(model.encoder.lift(x)), x)", ', methods=["decoder", "encoder.lift"]'),
        ("loss = model.heads['box'](model.encode(x)).mean()", ', methods=["encode", "heads"]'),
        ("loss = F.mse_loss(model(x), x) + model.encode(x).mean()", ', methods=["encode"]'),
        ("loss = model.scaled(model(x)).mean()", ', methods=["scaled"]'),
        # computes of what it is given alone
        ("loss = model.error(model(x), x)", ""),
        ("loss = F.mse_loss(model(x), x)", ""),
    ],
)
def test_the_wrapper_knows_what_is_called(loss: str, methods: str, tmp_path: Path) -> None:
    assert f"model = rd.distribute_model(model{methods})" in converted(tmp_path, SCRIPT.replace("LOSS", loss))


STEPPING = """\
import torch
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset


class Learner(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def update(self, x, optimizer):
        loss = self.layer(x).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


loader = DataLoader(TensorDataset(torch.randn(16, 4)), 4)
learner = Learner()
optimizer = optim.SGD(learner.parameters(), lr=0.1)
for (x,) in loader:
    learner.update(x, optimizer)
"""


@pytest.mark.parametrize("also", ["", "    learner.layer(x)\n", "    with torch.no_grad():\n        learner(x)\n"])
def test_a_method_that_steps_itself_is_refused(tmp_path: Path, also: str) -> None:
    (finding,) = conversion(tmp_path, STEPPING + also).refusals
    assert "calls backward inside it" in finding.refusal


STATIC = """\
import torch
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset


class Learner(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x):
        return self.layer(x)

    @staticmethod
    def loss(model, x):
        return model(x).mean()

    @staticmethod
    def update(model, x, optimizer):
        loss = Learner.loss(model, x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


loader = DataLoader(TensorDataset(torch.randn(16, 4)), 4)
learner = Learner()
optimizer = optim.SGD(learner.parameters(), lr=0.1)
for (x,) in loader:
    STEP
"""
STATIC_STEPS = {
    "that steps": "learner.update(learner, x, optimizer)",
    "that is a loss": "learner.loss(learner, x).backward()\n    optimizer.step()\n    optimizer.zero_grad()",
}


@pytest.mark.parametrize("step", STATIC_STEPS)
def test_a_static_method_is_given_the_wrapper(tmp_path: Path, step: str) -> None:
    lines = converted(tmp_path, STATIC.replace("STEP", STATIC_STEPS[step]))
    assert "learner = rd.distribute_model(learner)" in lines


REPLACED = """\
import torch
import torchvision
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset

loader = DataLoader(TensorDataset(torch.randn(16, 3, 32, 32), torch.zeros(16).long()), 4)
model = torchvision.models.resnet18()
for parameter in model.parameters():
    parameter.requires_grad = False
features = model.fc.in_features
PART = nn.Linear(features, 2)
optimizer = optim.SGD(filter(lambda p: p.requires_grad, model.parameters()), lr=0.1)
for x, y in loader:
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


@pytest.mark.parametrize("part", ["model.fc", "model.layer4[1].fc", "model.classifier[6]"])
def test_a_model_is_wrapped_after_its_last_layer_is_replaced(part: str, tmp_path: Path) -> None:
    lines = converted(tmp_path, REPLACED.replace("PART", part))
    place = lines.index("model = rd.distribute_model(model)")
    assert lines[place - 1] == f"{part} = nn.Linear(features, 2)"
