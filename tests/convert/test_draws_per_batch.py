"""Random numbers that one process draws once for a batch, and each rank for its part of it, are listed."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import conversion

SCRIPT = """\
import random

import numpy as np
import torch
import torchvision
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
loader = DataLoader(TensorDataset(torch.randn(64, 4), torch.randn(64, 4)), batch_size=8)
noise = torch.FloatTensor(5, 4)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.drop = nn.Linear(4, 4), nn.Dropout(0.5)

    def forward(self, x):
        FORWARD
        return self.layer(x)


def mix(x, y):
    weight = np.random.beta(0.2, 0.2)
    return weight * x + (1 - weight) * y


model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    for x, y in loader:
        shift = 0
        STEP
        loss = (model(x + shift) - y).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    torch.save(model(torch.randn(3, 4)), "shown.pt")
"""
ONCE = {
    "a number": ("shift = torch.rand(1)", "pass", "torch.rand(1)"),
    "a number of Python": ("shift = random.uniform(-1, 1)", "pass", "random.uniform(-1, 1)"),
    "a number of numpy": ("x = mix(x, y)", "pass", "np.random.beta(0.2, 0.2)"),
    "a number in a model": ("pass", "x = x * torch.rand(1)", "torch.rand(1)"),
    "a row": ("shift = torch.randn(1, 4)", "pass", "torch.randn(1, 4)"),
    "a row on its device": (
        "shift = torch.randn(4, device=x.device)",
        "pass",
        "torch.randn(4, device=x.device)",
    ),
    "a row as wide as the batch": ("shift = torch.randn(1, x.size(1))", "pass", "torch.randn(1, x.size(1))"),
    "a row of a width": ("n, d = x.shape; shift = torch.randn(1, d)", "pass", "torch.randn(1, d)"),
    "an order of columns": ("x = x[:, torch.randperm(4)]", "pass", "torch.randperm(4)"),
    "of the shape of a row": ("pass", "x = x + torch.randn(x.shape[1:])", "torch.randn(x.shape[1:])"),
    "as one row": ("shift = torch.randn_like(x[0])", "pass", "torch.randn_like(x[0])"),
    "in place, as one row": (
        "pass",
        "x = x * torch.empty_like(x[:1]).bernoulli_(0.7)",
        "torch.empty_like(x[:1]).bernoulli_(0.7)",
    ),
    "a new row in place": (
        "pass",
        "x = x * x.new_empty(1, x.size(1)).bernoulli_(0.7)",
        "x.new_empty(1, x.size(1)).bernoulli_(0.7)",
    ),
    "columns that are set": (
        "pass",
        "k = random.randint(1, 3); mask = torch.zeros(4); mask[:k] = 1; x = x * mask",
        "random.randint(1, 3)",
    ),
    "weights that are dropped": (
        "pass",
        "x = nn.functional.linear(x, nn.functional.dropout(self.layer.weight, 0.5, self.training))",
        "nn.functional.dropout(self.layer.weight, 0.5, self.training)",
    ),
    "a layer of dropout for a mask": ("pass", "x = x * self.drop(torch.ones(1, 4))", "self.drop(torch.ones(1, 4))"),
    "a choice of operations": (
        "pass",
        "x = x * nn.functional.gumbel_softmax(self.layer.bias)",
        "nn.functional.gumbel_softmax(self.layer.bias)",
    ),
    "drawn weights": (
        "pass",
        "x = x @ torch.distributions.Normal(self.layer.weight, 0.1).rsample()",
        "torch.distributions.Normal(self.layer.weight, 0.1).rsample()",
    ),
    "a layer that is left out": (
        "pass",
        "x = torchvision.ops.stochastic_depth(x, 0.1, 'batch')",
        "torchvision.ops.stochastic_depth(x, 0.1, 'batch')",
    ),
    "rows in place": ("noise.normal_(); shift = noise.mean(0)", "pass", "noise.normal_()"),
}
PER_SAMPLE = {
    "a row per sample on its device": "shift = torch.rand(x.shape[0], 1, device=x.device)",
    "a row per sample": "shift = torch.rand(x.size(0), 1)",
    "of the shape of the batch": "shift = torch.randn_like(x)",
    "of a variable with the size": "n = len(x)\n        shift = torch.rand(n, 1)",
    "dropout of the batch": "shift = nn.functional.dropout(x, 0.1) - x",
    "a distribution of the batch": "shift = torch.distributions.Normal(x, 0.1).sample()",
    "of all axes": "shift = torch.randn(x.shape[0:])",
    "in a loop over the samples": "x = torch.stack([row * random.random() for row in x])",
    "of the batch size of the loader": "shift = torch.rand(loader.batch_size, 1)",
    "nothing that is trained": "shown = torch.randn(3, 4)",
    "a shape alone": "n, t = torch.randn(4, 2).size(); shift = t",
    "of a generator that all ranks have": "shift = np.random.default_rng(0).random()",
}


def listed(folder: Path, step: str, forward: str) -> list[str]:
    result = conversion(folder, SCRIPT.replace("STEP", step).replace("FORWARD", forward))
    assert not result.refusals
    return [finding.message for finding in result.listed if "draws its own" in finding.message]


@pytest.mark.parametrize("name", ONCE)
def test_a_draw_for_the_whole_batch_is_listed(name: str, tmp_path: Path) -> None:
    step, forward, drawn = ONCE[name]
    message = f"each rank draws its own: {drawn}, which one process draws once for the whole batch"
    assert listed(tmp_path, step, forward) == [message]


@pytest.mark.parametrize("name", PER_SAMPLE)
def test_a_draw_for_each_sample_is_not_listed(name: str, tmp_path: Path) -> None:
    assert listed(tmp_path, PER_SAMPLE[name], "pass") == []


OWN = """\
import torch
from torch import nn

samples = torch.randn(64, 4)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(6):
    loss = model(samples[torch.randint(0, 64, (8,))]).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def test_a_draw_that_is_split_is_not_listed(tmp_path: Path) -> None:
    result = conversion(tmp_path, OWN)
    assert any("rd.data.own_draw(torch.randint(" in file.text for file in result.files)
    assert not any("draws its own" in finding.message for finding in result.listed)
