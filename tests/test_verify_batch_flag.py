"""`retrofit verify --batch-flag` with a script that divides its batch among the processes itself."""

from __future__ import annotations

from pathlib import Path

import pytest
from verify_command import run_verify

pytestmark = pytest.mark.usefixtures("forked_python")

SCRIPT = """\
import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--batch_size", type=int, default=16)
args = parser.parse_args()
world = int(os.environ.get("WORLD_SIZE", 1))
if world > 1:
    dist.init_process_group("gloo")
torch.manual_seed(0)
points = torch.randn(128, 6)
data = TensorDataset(points, (points.sum(1) > 0).long())
sampler = DistributedSampler(data, world, dist.get_rank() if world > 1 else 0)
loader = DataLoader(data, args.batch_size // world, sampler=sampler)
model = nn.Linear(6, 2)
if world > 1:
    model = DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
"""


def test_a_batch_that_would_be_divided_twice_is_divided_once(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    result = run_verify(tmp_path, "train.py", "--batch-flag", "batch_size", "--html", "", "--", "--batch_size", "16")
    assert result.returncode == 0, result.stdout
    assert "without --batch-flag: the script divides its batch itself" in result.stderr
