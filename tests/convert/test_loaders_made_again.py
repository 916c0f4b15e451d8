"""A loader that a training makes again every few epochs is sharded wherever it is made."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import conversion
from convert.training_runs import trains_as_one
from verify.projects.launch import Launcher

SCRIPT = """\
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_default_dtype(torch.float64)


class Batches:
    def __init__(self, data, size):
        self.data = data
        self.rows = [range(i, i + size) for i in range(0, len(data), size)]

    def __len__(self):
        return len(self.rows)

    def __iter__(self):
        for rows in self.rows:
            yield [self.data[i][0] for i in rows]


def stacked(batch):
    return torch.stack([*batch])


def rows_of(data, size):
    return DataLoader([x for x, in data], batch_size=size)


def main():
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(48, 6))
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = MADE
    for epoch in range(4):
        if epoch % 2 == 1:
            data = TensorDataset(data.tensors[0].flip(1))
            loader = MADE
        total = 0.0
        for batch in loader:
            loss = model(stacked(batch)).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        print("shown", total / len(loader))


main()
"""
MADE = ["Batches(data, 8)", "Batches(data, size=8)", "DataLoader(data.tensors[0], batch_size=8)", "rows_of(data, 8)"]


@pytest.mark.parametrize("made", MADE)
def test_each_of_them_is_sharded(tmp_path: Path, made: str) -> None:
    result = conversion(tmp_path, SCRIPT.replace("MADE", made))
    assert not result.refusals
    (text,) = [file.text for file in result.files if file.path.name == "train.py"]
    assert text.count("loader = rd.distribute_loader(") == 2
    assert "rd.reduce_loss(loss).item()" in text


@pytest.mark.parametrize("made", [MADE[1], MADE[2]])
def test_the_training_is_that_of_one_process(tmp_path: Path, launcher: Launcher, made: str) -> None:
    trains_as_one(tmp_path, SCRIPT.replace("MADE", made), launcher)
