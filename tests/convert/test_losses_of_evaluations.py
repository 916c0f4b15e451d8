"""Losses of an evaluation that computes with gradients, and is run whole by every process."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.training_runs import trains_as_one
from verify.projects.launch import Launcher

SCRIPT = """\
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(53, 4, dtype=torch.float64)
y = (x.sum(1) > 0).long()
train, val = DataLoader(TensorDataset(x[:41], y[:41]), 6), DataLoader(TensorDataset(x[41:], y[41:]), 8)
model = nn.Linear(4, 2).double()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)


def criterion(output, target):
    LOSS


def validate():
    model.eval()
    total = 0.0
    for i, (a, b) in enumerate(val):
        EVALUATE
        total += loss.item()
    print("shown", i * 8 + len(a), total)  # the last batch is used after the loop, so it is not split
    model.train()


for epoch in range(2):
    for step, (a, b) in enumerate(train):
        loss = criterion(model(a), b)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step == 6:  # of 5 samples, which the processes count differently
            validate()
    validate()
"""
LOSSES = {
    "a mean that is divided": "return F.cross_entropy(output, target) / output.size(0)",
    "a masked mean": "mask = (target > 0).double()\n"
    "    return (F.cross_entropy(output, target, reduction='none') * mask).sum() / (mask.sum() + 1e-6)",
    "a counted mean": "return F.cross_entropy(output, target, ignore_index=0)",
}
EVALUATIONS = {
    "no gradients in the model": "with torch.no_grad():\n            output = model(a)\n"
    "        loss = criterion(output, b)",
    "gradients everywhere": "loss = criterion(model(a), b)",
}


@pytest.mark.parametrize("evaluation", EVALUATIONS)
@pytest.mark.parametrize("loss", LOSSES)
def test_they_are_those_of_its_batches(tmp_path: Path, launcher: Launcher, loss: str, evaluation: str) -> None:
    script = SCRIPT.replace("LOSS", LOSSES[loss], 1).replace("EVALUATE", EVALUATIONS[evaluation])
    trains_as_one(tmp_path, script, launcher)
