"""A loader that is made in the call which hands it on is sharded for all that the function asks of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import converted

SCRIPT = """\
import torch
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset

x = torch.randn(16, 4)
data = TensorDataset(x, x.sum(1, keepdim=True))
model = nn.Linear(4, 1)
optimizer = optim.SGD(model.parameters(), lr=0.1)
scheduler = optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, T_0=2)


def make():
    return DataLoader(data, 4)


def step(batches, epoch):
    for i, (x, y) in enumerate(batches):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
        scheduler.step(epoch + i / len(batches))


{line}
"""
FIT = """
def fit(loader):
    print(len(loader))
    for epoch in range(2):
        step(loader, epoch)


"""
FUNCTION_BEGINS = "batches = rd.distribute_loader(batches)"
LINES = {
    "a function": ("step(DataLoader(data, 4), 0)", "step(rd.distribute_loader(DataLoader(data, 4)), 0)"),
    "by a keyword": (
        "step(epoch=0, batches=DataLoader(data, 4))",
        "step(epoch=0, batches=rd.distribute_loader(DataLoader(data, 4)))",
    ),
    "through two functions": (FIT + "fit(DataLoader(data, 4))", "fit(rd.distribute_loader(DataLoader(data, 4)))"),
    "of a factory": ("step(make(), 0)", FUNCTION_BEGINS),
}


@pytest.mark.parametrize("kind", LINES)
def test_the_length_is_that_of_the_sharded_loader(tmp_path: Path, kind: str) -> None:
    line, expected = LINES[kind]
    lines = [text.strip() for text in converted(tmp_path, SCRIPT.format(line=line))]
    assert [text for text in lines if "distribute_loader(" in text] == [expected]
    if expected == FUNCTION_BEGINS:
        assert lines[lines.index(expected) - 1] == "def step(batches, epoch):"
