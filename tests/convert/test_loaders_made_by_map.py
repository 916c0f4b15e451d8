"""Loaders that `map` makes, one for each data set, in a function that trains or evaluates by an argument."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import converted

SCRIPT = """\
from functools import partial

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from tqdm import tqdm


def data(n):
    x = torch.randn(n, 6)
    return TensorDataset(x, x.sum(1, keepdim=True))


def make(samples):
    return DataLoader(samples, batch_size=8)


def run(batches, model, optimizer=None):
    bar = tqdm(batches)
    total = 0
    for x, y in bar:
        loss = nn.functional.mse_loss(model(x), y)
        total += float(loss)
        if optimizer:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        bar.set_description(f"{total:.4f}")
    return total


sets = data(48), data(24)
by_size = partial(DataLoader, batch_size=8)
train, test = MADE
model = nn.Linear(6, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for epoch in range(3):
    print(run(train, model, optimizer=optimizer))
    with torch.no_grad():
        print(run(test, model))
"""
FORMS = [
    "map(DataLoader, sets)",
    "map(make, sets)",
    "map(by_size, sets)",
    "map(partial(by_size, shuffle=True), sets)",
    "map(lambda samples: DataLoader(samples, batch_size=8), sets)",
    "list(map(by_size, sets))",
    "tuple(DataLoader(samples, batch_size=8) for samples in sets)",
]


@pytest.mark.parametrize("made", FORMS)
def test_the_loader_of_the_training_is_sharded(tmp_path: Path, made: str) -> None:
    lines = converted(tmp_path, SCRIPT.replace("MADE", made))
    assert [line for line in lines if "distribute_loader(" in line] == ["train = rd.distribute_loader(train)"]
