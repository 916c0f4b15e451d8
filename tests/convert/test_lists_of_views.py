"""Views of a batch that a data set gives as a list: some of them are no samples that are taken by their place."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import conversion

SCRIPT = """\
import copy

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Crops(Dataset):
    def __init__(self):
        self.rows = torch.randn(32, 4)

    def __len__(self):
        return 32

    def __getitem__(self, number):
        return [self.rows[number] + 0.1 * step for step in range(4)], number


class Joined(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, views):
        return self.layer(torch.cat(views))


student = Joined()
teacher = copy.deepcopy(student)
optimizer = torch.optim.SGD(student.parameters(), lr=0.1)
for views, _ in DataLoader(Crops(), batch_size=8):
    STEP
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
LISTS = [
    "loss = (student(views).mean() - teacher(views[:2]).detach().mean()).pow(2)",
    "first = views[:2]\n    loss = (student(views).mean() - teacher(first).detach().mean()).pow(2)",
    "views = [view.to('cpu') for view in views]\n    loss = (student(views).mean() - teacher(views[2:]).mean()).pow(2)",
]
SAMPLES = [
    "rows = student.layer(views[0])\n    loss = (rows[:2] - teacher(views).mean()).pow(2).mean()",
]


def messages(folder: Path, step: str) -> list[str]:
    findings = conversion(folder, SCRIPT.replace("STEP", step)).findings
    return [finding.message for finding in findings if "by their place" in finding.message]


@pytest.mark.parametrize("step", LISTS)
def test_some_views_of_a_list_are_not_taken_for_samples(tmp_path: Path, step: str) -> None:
    assert not messages(tmp_path, step)


@pytest.mark.parametrize("step", SAMPLES)
def test_some_rows_are(tmp_path: Path, step: str) -> None:
    assert messages(tmp_path, step)
