"""Evaluations in DDP that a DistributedSampler fills up, shuffles or cuts, and those that it does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from retrofit.project import read_project
from retrofit.rules.registry import find_hazards

SCRIPT = """\
import copy
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, SequentialSampler, Subset

dist.init_process_group("gloo")
rank, world_size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
dataset, val_set = torch.randn(16, 2), torch.randn(9, 2)
model = DDP(nn.Linear(2, 2))
ema = copy.deepcopy(model.module)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, 2, sampler=sampler)
VAL


def evaluate():
    total, outputs = torch.zeros(2), []
    with torch.no_grad():
        for x in val_loader:
            SUM
    dist.all_reduce(total)
    AFTER
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
SUM = "total += torch.tensor([model(x).square().sum(), len(x)])"
EMA = "total += torch.tensor([ema(x).square().sum(), len(x)])"
LIST = "outputs.append(model(x))"
SHUFFLED, PLAIN = "DistributedSampler(val_set)", "DistributedSampler(val_set, shuffle=False)"
GATHER = "parts = [None] * world_size\n    dist.all_gather_object(parts, torch.cat(outputs))"
CASES = [
    ("shuffled", f"val_loader = DataLoader(val_set, 2, sampler={SHUFFLED})", SUM, ""),
    ("repeated", f"val_loader = DataLoader(val_set, 2, sampler={PLAIN})", SUM, ""),
    ("shuffled", f"val_loader = DataLoader(val_set, 2, sampler={SHUFFLED})", EMA, ""),
    ("left out", f"val_loader = DataLoader(val_set, 2, sampler={PLAIN[:-1]}, drop_last=True))", EMA, ""),
    ("shuffled", f"options = {{'sampler': {SHUFFLED}}}\nval_loader = DataLoader(val_set, 2, **options)", SUM, ""),
    ("repeated", f"val_loader = DataLoader(val_set, 2, sampler={PLAIN})", LIST, GATHER),
    ("", f"val_loader = DataLoader(val_set, 2, sampler={PLAIN})", LIST,
     f"{GATHER}\n    outputs = torch.stack(parts, 1).flatten(0, 1)[: len(val_set)]"),
    ("", "val_loader = DataLoader(Subset(val_set, range(rank, 9, world_size)), 2)", SUM, ""),
    ("", "val_loader = DataLoader(Subset(val_set, range(rank, 9, world_size)), 2)", EMA, ""),
    ("", "val_loader = DataLoader(val_set, 2, sampler=SequentialSampler(val_set))", EMA, ""),
    ("", f"assert len(val_set) % world_size == 0\nval_loader = DataLoader(val_set, 2, sampler={PLAIN})", SUM, ""),
]  # fmt: skip


@pytest.mark.parametrize(("message", "val", "add", "after"), CASES)
def test_an_evaluation_that_is_filled_up(message: str, val: str, add: str, after: str, tmp_path: Path) -> None:
    text = SCRIPT.replace("VAL", val).replace("SUM", add).replace("AFTER", after or "pass")
    (tmp_path / "train.py").write_text(text)
    found = [f for f in find_hazards(read_project(tmp_path / "train.py")) if f.code == "RF105"]
    assert len(found) == bool(message) and all(message in finding.message for finding in found)
