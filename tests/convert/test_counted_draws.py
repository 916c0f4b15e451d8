"""Loops that draw a number of batches by next(): a rank draws its part of them, and no more than it has."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import conversion, converted

SCRIPT = """\
import math
import random

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)


class Data:
    def __init__(self, batch_size):
        self.batch_size, self.size = batch_size, 44
        self.rows = [(torch.randn(6), 0) for _ in range(44)]

    def batches(self):
        rows = sorted(self.rows, key=lambda row: random.random())
        for batch in zip(*[iter(rows)] * self.batch_size):
            yield torch.stack([x for x, _ in batch]), torch.tensor([y for _, y in batch])


def fit(batches, steps):
    model.train()
    for i in range(steps):
        DRAW
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def evaluate(batches, steps):
    model.eval()
    with torch.no_grad():
        return sum((model(x).argmax(1) == y).sum().item() for x, y in (next(batches) for _ in range(steps)))


data = Data(8)
model = nn.Linear(6, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(3):
    steps = NUMBER
    fit(data.batches(), steps)
    print(evaluate(data.batches(), steps))
"""
NUMBERS = ("data.size // data.batch_size", "int(data.size / 8)", "math.ceil(data.size / data.batch_size)")


def script(number: str, draw: str = "x, y = next(batches)") -> str:
    return SCRIPT.replace("NUMBER", number).replace("DRAW", draw)


@pytest.mark.parametrize("number", NUMBERS)
def test_a_rank_draws_its_part_of_the_batches(tmp_path: Path, number: str) -> None:
    lines = converted(tmp_path, script(number))
    assert "for i in range(rd.data.own_batches(steps)):" in lines
    assert f"steps = {number}" in lines  # by which the evaluation counts
    assert "batches = rd.distribute_loader(batches)" in lines


def test_a_mean_is_over_the_batches_of_a_rank(tmp_path: Path) -> None:
    text = script(NUMBERS[0]).replace(
        "        optimizer.step()\n", "        optimizer.step()\n        total += loss.item()\n"
    )
    text = text.replace("    for i in range", "    total = 0.0\n    for i in range").replace(
        "\n\n\ndef eval", "\n    print(total / steps)\n\n\ndef eval"
    )
    assert "print(total / rd.data.own_batches(steps))" in converted(tmp_path, text)


OTHERS = {
    "a number of steps": ("100", "x, y = next(batches)"),
    "another value for the end": (NUMBERS[0], "x, y = next(batches, None) or first"),
    "a loop that begins again": (
        NUMBERS[0],
        "try:\n            x, y = next(batches)\n        except StopIteration:\n"
        "            batches = data.batches()\n            x, y = next(batches)",
    ),
}


@pytest.mark.parametrize("kind", OTHERS)
def test_other_numbers_of_draws_stay(tmp_path: Path, kind: str) -> None:
    result = conversion(tmp_path, script(*OTHERS[kind]))
    assert not any("own_batches" in file.text for file in result.files)
