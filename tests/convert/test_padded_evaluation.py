"""Messages about evaluations in DDP that a DistributedSampler fills up, shuffles or cuts."""

from __future__ import annotations

from pathlib import Path

import pytest

from retrofit.rules.registry import find_hazards
from retrofit.training import read_project

SCRIPT = """\
import copy
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, SequentialSampler

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
dataset, val_set = torch.randn(16, 2), torch.randn(9, 2)
model = DDP(nn.Linear(2, 2))
ema = copy.deepcopy(model.module)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, 2, sampler=sampler)
val_loader = LOADER


def evaluate():
    total = torch.zeros(2)
    with torch.no_grad():
        for x in val_loader:
            total += torch.tensor([EVALUATED(x).square().sum(), len(x)])
    dist.all_reduce(total)
    return total[0] / total[1]


for epoch in range(2):
    sampler.set_epoch(epoch)
    for x in loader:
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    error = evaluate()
    if rank == 0:
        print(error)
"""
PLAIN = "DistributedSampler(val_set, shuffle=False)"
CASES = [
    ("shuffled", "DataLoader(val_set, 2, sampler=DistributedSampler(val_set))", "model"),
    ("repeated", f"DataLoader(val_set, 2, sampler={PLAIN})", "model"),
    ("left out", f"DataLoader(val_set, 2, sampler={PLAIN[:-1]}, drop_last=True))", "ema"),
    ("", "DataLoader(val_set, 2, sampler=SequentialSampler(val_set))", "ema"),
]


@pytest.mark.parametrize(("message", "loader", "evaluated"), CASES)
def test_the_message_says_how_the_samples_are_filled_up(
    message: str, loader: str, evaluated: str, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(SCRIPT.replace("LOADER", loader).replace("EVALUATED", evaluated))
    found = [f for f in find_hazards(read_project(tmp_path / "train.py")) if f.code == "RF105"]
    assert len(found) == bool(message) and all(message in finding.message for finding in found)
