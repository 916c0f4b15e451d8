"""`retrofit verify` on a script that shards its model by hand (FSDP2), and on one that starts its own processes."""

from __future__ import annotations

from pathlib import Path

import pytest
from verify_command import judge

pytestmark = pytest.mark.usefixtures("forked_python")

SHARDED = """\
import argparse
import os

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--batch_size", type=int, default=8)
parser.add_argument("--resume", default="")
args = parser.parse_args()
several = "RANK" in os.environ
if several:
    dist.init_process_group("gloo")
torch.manual_seed(0)
data = TensorDataset(torch.randn(32, 6), torch.randn(32, 1))
model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.GELU(), torch.nn.Linear(8, 1))
if several:
    fully_shard(model, mesh=dist.init_device_mesh("cpu", (dist.get_world_size(),)))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
options = StateDictOptions(full_state_dict=True) if several else None
start = 0
if args.resume:
    state = torch.load(args.resume, map_location="cpu")
    set_state_dict(
        model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"], options=options
    )
    start = state["epoch"]
sampler = DistributedSampler(data) if several else None
loader = DataLoader(data, args.batch_size, shuffle=sampler is None, sampler=sampler)
for epoch in range(start, 2):
    if sampler is not None:
        sampler.set_epoch(epoch)
    for x, y in loader:
        (model(x) - y).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    weights, state = get_state_dict(model, optimizer, options=options)
    if not several or dist.get_rank() == 0:
        torch.save({"model": weights, "optimizer": state, "epoch": epoch + 1}, "last.pt")
if several:
    dist.destroy_process_group()
"""


def test_a_model_that_is_sharded_by_hand_passes(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SHARDED)
    status, report = judge(tmp_path, ["--batch-flag", "batch_size"], ["--batch_size", "8"])
    assert [v["summary"] for v in report["verdicts"] if v["status"] == "FAIL"] == []
    assert status == 0
    assert "resume" in [verdict["check"] for verdict in report["verdicts"] if verdict["status"] == "PASS"]
