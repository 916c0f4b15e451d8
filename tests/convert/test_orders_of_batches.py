"""Random orders of batches that are made before: each rank takes whole ones in turn, by the numbers of the order."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import conversion, converted
from convert.training_runs import trains_as_one
from verify.projects.launch import Launcher

SCRIPT = """\
import random

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

np.random.seed(0)
random.seed(0)
torch.manual_seed(0)


def batches(rows):
    found = []
    for length in (3, 4, 5):
        for _ in range(rows):
            found.append(torch.randint(0, 9, (6, length)))
    return found


data = batches(3)
model = nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 9)).double()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
step, total, count = 0, 0.0, 0
for epoch in range(2):
    BEFORE
    for OVER:
        x = data[i]
        loss = F.cross_entropy(model(x).flatten(0, 1), x.flatten(), reduction="none").view(len(x), -1).sum(1)
        optimizer.zero_grad()
        loss.mean().backward()
        optimizer.step()
        total += loss.sum().item()
        count += x.size(0)
        step += 1
        INSIDE
print("shown", total / count, step)
"""


def script(before: str, over: str, inside: str = "pass") -> str:
    return SCRIPT.replace("BEFORE", before).replace("OVER", over).replace("INSIDE", inside)


@pytest.mark.parametrize(
    ("before", "over", "changed"),
    [
        ("pass", "i in np.random.permutation(len(data))", "rd.data.draw_together(np.random.permutation, len(data))"),
        ("pass", "n, i in enumerate(torch.randperm(9).tolist())", "rd.data.draw_together(torch.randperm, 9).tolist()"),
        ("order = np.random.permutation(9)", "i in order", "order"),
        ("order = list(range(9)); random.shuffle(order)", "i in order", "order"),
    ],
)
def test_numbers_go_to_the_ranks_in_turn(tmp_path: Path, before: str, over: str, changed: str) -> None:
    lines = converted(tmp_path, script(before, over))
    taken = f"rd.distribute_loader({changed}, keep_batches=True)"
    assert any(taken in line for line in lines)
    assert any("rd.data.draw_together(" in line for line in lines)
    assert "total += rd.reduce_total(loss.sum()).item()" in lines
    assert "count += rd.reduce_total(x.size(0))" in lines


@pytest.mark.parametrize(
    ("over", "inside"),
    [
        ("i in np.random.permutation(len(data))", "print(i)"),
        ("i in np.random.permutation(len(data))", "data[i] = x + 0"),
        (
            "i in np.random.permutation(len(data))",
            "for _ in range(2):\n            model(data[np.random.randint(9)]).sum().backward()",
        ),
        ("i in range(len(data))", "pass"),
    ],
)
def test_numbers_with_another_use_are_refused(tmp_path: Path, over: str, inside: str) -> None:
    assert conversion(tmp_path, script("pass", over, inside)).refusals


def test_an_order_of_batches_trains_as_one(tmp_path: Path, launcher: Launcher) -> None:
    trains_as_one(tmp_path, script("pass", "i in np.random.permutation(len(data))"), launcher)
