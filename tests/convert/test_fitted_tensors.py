"""An evaluation that fits a tensor to each of its batches trains nothing: its rows are those of the samples."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import conversion, converted

HEAD = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


"""
TRAINING = """\


torch.manual_seed(0)
data = torch.randn(30, 4)
train = DataLoader(TensorDataset(data, data[:, :3].clone()), batch_size=8)
model = nn.Linear(3, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, z in train:
    loss = (model(z) - x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
RUN = "print(torch.cat(score(model, DataLoader(TensorDataset(data), batch_size=8), 5)).mean())\n"
LATENT = """\
def score(model, loader, steps):
    scores = []
    for (x,) in loader:
        z = torch.zeros(len(x), 3, requires_grad=True)
        fit = torch.optim.Adam([z], lr=0.1)
        for _ in range(steps):
            fit.zero_grad()
            loss = (model(z) - x).square()
            loss.mean().backward()
            fit.step()
        scores.append(loss.detach().mean(1))
    return scores
"""
IN_A_FUNCTION = """\
def fitted(model, x, steps):
    z = nn.Parameter(torch.zeros(x.size(0), 3))
    fit = torch.optim.SGD([{"params": [z]}], lr=0.1)
    while steps > 0:
        fit.zero_grad()
        (model(z) - x).square().mean().backward()
        fit.step()
        steps -= 1
    return (model(z) - x).square().mean(1).detach()


def score(model, loader, steps):
    scores = []
    for number, (x,) in enumerate(loader):
        scores.append(fitted(model, x, steps))
    return scores
"""
IN_AN_OBJECT = """\
class Inverter:
    def __init__(self, model):
        self.model = model

    def run(self, x, steps):
        batch_size = x.shape[0]
        self.z = torch.zeros(batch_size, 3, requires_grad=True)
        self.fit = torch.optim.Adam([self.z], lr=0.1)
        for _ in range(steps):
            self.fit.zero_grad()
            (self.model(self.z) - x).square().mean().backward()
            self.fit.step()
        return (self.model(self.z) - x).square().mean(1).detach()


def score(model, loader, steps):
    inverter, scores = Inverter(model), []
    for (x,) in loader:
        scores.append(inverter.run(x, steps))
    return scores
"""
BY_HAND = """\
def score(model, loader, steps):
    scores = []
    for (x,) in loader:
        noisy = x.clone()
        for _ in range(steps):
            noisy.requires_grad_()
            (model(noisy[:, :3]) - x).square().mean().backward()
            noisy = (noisy + 0.1 * noisy.grad).detach()
        scores.append((model(noisy[:, :3]) - x).square().mean(1).detach())
    return scores
"""


@pytest.mark.parametrize("kind", [LATENT, IN_A_FUNCTION, IN_AN_OBJECT, BY_HAND])
def test_its_batches_and_its_rate_stay(tmp_path: Path, kind: str) -> None:
    lines = converted(tmp_path, HEAD + kind + TRAINING + RUN)
    assert [line for line in lines if "distribute_loader" in line] == ["train = rd.distribute_loader(train)"]
    assert [line for line in lines if "scaled_lr" in line] == [
        "optimizer = torch.optim.SGD(model.parameters(), lr=rd.scaled_lr(0.1))"
    ]
    assert not any("distribute_parameter" in line or "gather_batch" in line for line in lines)


def test_weights_that_are_trained_in_several_trials_are_no_such_tensors(tmp_path: Path) -> None:
    trials = """\
data = torch.randn(30, 4)
for width in (2, 4):
    weight = torch.zeros(width, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for (x,) in DataLoader(TensorDataset(data), batch_size=8):
        optimizer.zero_grad()
        (x[:, :width] @ weight - 1).square().mean().backward()
        optimizer.step()
"""
    findings = conversion(tmp_path, HEAD + trials).findings
    assert any("distribute_loader" in edit.text for finding in findings for edit in finding.edits)
