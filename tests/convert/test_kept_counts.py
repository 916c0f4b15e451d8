"""A module that keeps sums over the batches and their count has both of all ranks, or both of one process."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import converted

SCRIPT = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Running(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.tensor(0.0))
        self.register_buffer("steps", torch.tensor(0.0))
        self.register_buffer("total", torch.zeros(1, 4))

    def forward(self, x):
        self.keep(x.detach())
        return x - self.total / self.count

    def keep(self, x):
        self.total += x.sum(0, keepdim=True)
        self.steps += 1
        {count}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.running, self.layer = Running(), nn.Linear(4, 1)

    def forward(self, x):
        return self.layer(self.running(x))


loader = DataLoader(TensorDataset(torch.randn(16, 4)), 4, shuffle=True)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for (x,) in loader:
    optimizer.zero_grad()
    model(x).pow(2).mean().backward()
    optimizer.step()
"""
COUNTS = {
    "self.count += x.shape[0]": "self.count += rd.loss.batch_count(x.shape[0])",
    "self.count += len(x)": "self.count += rd.loss.batch_count(len(x))",
    "n = x.size(0); self.count += n": "n = x.size(0); self.count += rd.loss.batch_count(n)",
    "self.count.add_(x.shape[0])": "self.count.add_(rd.loss.batch_count(x.shape[0]))",
    "self.count = self.count + x.shape[0]": "self.count = self.count + rd.loss.batch_count(x.shape[0])",
}


@pytest.mark.parametrize("count", COUNTS)
def test_the_count_kept_with_a_sum_of_all_ranks_is_of_all_ranks(tmp_path: Path, count: str) -> None:
    lines = [line.strip() for line in converted(tmp_path, SCRIPT.format(count=count))]
    assert "self.total += rd.loss.batch_sum(x.sum(0, keepdim=True))" in lines
    assert COUNTS[count] in lines and "self.steps += 1" in lines
