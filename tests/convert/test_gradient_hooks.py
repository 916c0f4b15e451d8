"""Hooks on parameters, which get their gradient before the ranks have made the mean of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import conversion, converted
from convert.training_runs import trains_as_one
from verify.projects.launch import Launcher

SCRIPT = """\
from functools import partial

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(32, 5).double()
loader = DataLoader(TensorDataset(x, 9 * x[:, :2]), batch_size=8)
model = nn.Linear(5, 2).double()
mask = torch.ones(2, dtype=torch.double)


def cut(gradient, most=0.05):
    norm = gradient.norm()
    if norm > most:
        gradient = gradient * (most / norm)
    return gradient


def kept(gradient):
    gradient = gradient.clone()
    gradient[0] = 0
    gradient *= 3
    return gradient / 3


class Limited(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(5, 2).double()
        self.layer.weight.register_hook(self.limit)

    def limit(self, gradient):
        return gradient.sign()

    def forward(self, x):
        return self.layer(x)


HOOKS
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    for a, b in loader:
        loss = nn.functional.mse_loss(model(a), b)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print("shown", loss.item())
"""
EACH = "for name, p in model.named_parameters():\n    p.register_hook({})"
CHANGING = [
    EACH.format("lambda gradient: torch.clamp(gradient, -0.01, 0.01)"),
    EACH.format("lambda g, most=0.01: g.clamp(-most, most)"),
    EACH.format("cut"),
    EACH.format("partial(torch.clamp, min=-0.01, max=0.01)"),
    EACH.format("lambda g: g / (g.abs().max() + 1)"),
    "for p in model.parameters():\n    def own(g, p=p):\n        return g.sign() * 2\n\n    p.register_hook(own)",
    "def own(g):\n    if g.sum() > 0:\n        return 2 * g\n    return g\n\n\nmodel.weight.register_hook(own)",
    "model.weight.register_hook(torch.nan_to_num)",
    "model = Limited()",
]
HARMLESS = [
    EACH.format("lambda gradient: gradient * 0.5"),
    EACH.format("lambda g: -g.mul(2).clone()"),
    EACH.format("kept"),
    "model.bias.register_hook(lambda g: torch.mul(g, mask))",
]


@pytest.mark.parametrize("hooks", CHANGING)
def test_a_hook_gets_the_mean_over_the_ranks(hooks: str, tmp_path: Path) -> None:
    text = "\n".join(converted(tmp_path, SCRIPT.replace("HOOKS", hooks)))
    assert text.count("hook(rd.collectives.reduce_mean(gradient))") == 1


@pytest.mark.parametrize("hooks", HARMLESS)
def test_a_hook_that_makes_a_multiple_stays(hooks: str, tmp_path: Path) -> None:
    result = conversion(tmp_path, SCRIPT.replace("HOOKS", hooks))
    assert not result.refusals and not [finding for finding in result.findings if finding.code == "RF215"]


@pytest.mark.parametrize("hooks", [CHANGING[0], CHANGING[5], CHANGING[-1], HARMLESS[2]])
def test_two_processes_train_as_one(hooks: str, tmp_path: Path, launcher: Launcher) -> None:
    trains_as_one(tmp_path, SCRIPT.replace("HOOKS", hooks), launcher, rel=1e-9)
