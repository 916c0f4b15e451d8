"""Objects of a project that give batches of the size that they were made with: all ranks share each of these."""

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

np.random.seed(0)
torch.manual_seed(0)
rows = 47
x, y, length = torch.randn(rows, 4), torch.randn(rows, 1), np.random.randint(0, 3, rows)


class Sampler:
    def __init__(self, rows, batch_size=16):
        self.rows, self.batch_size, self.at = rows, batch_size, rows

    def next_rows(self):
        if self.at + self.batch_size > self.rows:
            self.order, self.at = np.random.permutation(self.rows), 0
        self.at += self.batch_size
        return self.order[self.at - self.batch_size : self.at]

    def next_pairs(self):
        return zip(*[(row, length[row]) for row in self.next_rows()])


if __name__ == "__main__":
    batch_size = 10
    steps = (len(x) - 1) // batch_size + 1
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    sampler = Sampler(rows, batch_size)
    for epoch in range(3):
        for step in range(steps):
            chosen = sampler.next_rows()
            loss = (model(x[chosen]) - y[chosen]).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print("shown", loss.item())
"""
PAIRS = SCRIPT.replace(
    "            chosen = sampler.next_rows()\n",
    "            chosen, number = sampler.next_pairs()\n            chosen, at = list(chosen), np.where(number)\n",
).replace("(model(x[chosen]) - y[chosen]).square().mean()", "criterion(model(x[chosen])[at], y[chosen][at])")
PAIRS = PAIRS.replace("    batch_size = 10\n", "    batch_size, criterion = 10, nn.MSELoss()\n")


@pytest.mark.parametrize("script", [SCRIPT, PAIRS], ids=["rows", "pairs"])
def test_each_rank_takes_its_samples_of_each_batch(script: str, tmp_path: Path, launcher: Launcher) -> None:
    trains_as_one(tmp_path, script, launcher, rel=1e-5)


def test_the_object_and_the_epoch_are_of_all_ranks(tmp_path: Path) -> None:
    (file,) = conversion(tmp_path, SCRIPT).files
    assert "sampler = Sampler(rows, rd.data.batch_of_ranks(batch_size))" in file.text
    assert "chosen = rd.data.own_draw(sampler.next_rows(), batch_size)" in file.text
    assert "steps = (len(x) - 1) // rd.data.samples_per_step(batch_size) + 1" in file.text


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("Sampler(rows, batch_size)", "Sampler(rows)"),
        ("loss.item())\n", "loss.item())\n            sampler.rows = len(sampler.next_rows()) + 40\n"),
        ("loss.item())\n", "loss.item())\n            sampler.next_pairs()\n"),
    ],
    ids=["no size", "called again", "another method"],
)
def test_other_objects_are_refused(before: str, after: str, tmp_path: Path) -> None:
    result = conversion(tmp_path, SCRIPT.replace(before, after))
    assert any("sampler.next_rows() makes a batch is not known" in finding.refusal for finding in result.refusals)
