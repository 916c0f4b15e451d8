"""`retrofit verify` ties random draws to the batch that is computed with, in whatever order batches are drawn."""

from __future__ import annotations

from pathlib import Path

import pytest
from verify_command import judge

pytestmark = pytest.mark.usefixtures("forked_python")

SCRIPT = """\
import argparse
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--batch_size", type=int, default=8)
parser.add_argument("--resume", default="")
args = parser.parse_args()
world, rank = int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("RANK", 0))
if world > 1:
    dist.init_process_group("gloo")
torch.manual_seed(0)
data = TensorDataset(torch.randn(64, 6), torch.randn(64, 1))
model = torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.Dropout(0.3), torch.nn.Linear(16, 1))
ddp = DistributedDataParallel(model) if world > 1 else model
optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
torch.manual_seed(rank)
sampler = DistributedSampler(data, drop_last=True) if world > 1 else None
loader = DataLoader(data, args.batch_size, shuffle=sampler is None, sampler=sampler, drop_last=True)
checked = DataLoader(data, 4)
example = next(iter(loader))  # looked at, and never computed with
start = 0
if args.resume:
    state = torch.load(args.resume, map_location="cpu")
    model.load_state_dict(state["model"])
    start = state["epoch"]


def ahead(loader):
    batches = iter(loader)
    following = [part * 2 for part in next(batches)]
    while following is not None:
        batch, following = following, next(batches, None)
        if following is not None:
            following = [part * 2 for part in following]
        yield batch


for epoch in range(start, args.epochs):
    if sampler is not None:
        sampler.set_epoch(epoch)
    ddp.train()
    for x, y in ahead(loader):
        optimizer.zero_grad()
        (ddp(x + 0.1 * torch.randn_like(x)) - y).pow(2).mean().backward()
        optimizer.step()
    model.eval()
    total = torch.zeros(1)
    with torch.no_grad():
        for number, (x, y) in enumerate(checked):
            if number % world == rank:
                total += (model(x) - y).pow(2).sum()
    if world > 1:
        dist.all_reduce(total)
    if rank == 0:
        print(f"epoch {epoch} error {total.item() / 64:.4f}")
        torch.save({"model": model.state_dict(), "epoch": epoch + 1}, "last.pt")
if world > 1:
    dist.destroy_process_group()
"""


def test_batches_that_are_skipped_or_drawn_ahead_keep_their_own_draws(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    status, report = judge(tmp_path, ["--batch-flag", "batch_size"], ["--batch_size", "8"])
    assert [v["summary"] for v in report["verdicts"] if v["status"] == "FAIL"] == []
    assert status == 0, report["conclusion"]


STEP = """\
        optimizer.zero_grad()
        (ddp(x + 0.1 * torch.randn_like(x)) - y).pow(2).mean().backward()
        optimizer.step()
"""
LOOPS = {
    "micro batches with BatchNorm": """\
        optimizer.zero_grad()
        for part, wanted in zip(x.chunk(2), y.chunk(2)):
            loss = (ddp(part + 0.1 * torch.randn_like(part)) - wanted).pow(2).mean()
            (loss / 2).backward()
        optimizer.step()
""",
    "another order": """\
        order = torch.arange(len(x) - 1, -1, -1)
        x, y = x[order], y[order]
"""
    + STEP,
    "batches that are kept": """\
        kept = [*kept, (x, y)][-2:]
        x, y = kept[0]
"""
    + STEP,
}


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name[0] == "b")) for name in LOOPS])
def test_parts_of_a_batch_draw_what_the_whole_draws(name: str, tmp_path: Path) -> None:
    assert SCRIPT.count(STEP) == 1
    net = "torch.nn.Sequential(torch.nn.Linear(6, 16), "
    assert SCRIPT.count(net) == 1
    text = SCRIPT.replace(net, f"{net}torch.nn.SyncBatchNorm(16), ") if "BatchNorm" in name else SCRIPT
    text = text.replace(STEP, LOOPS[name]).replace("    ddp.train()\n", "    ddp.train()\n    kept = []\n")
    (tmp_path / "train.py").write_text(text)
    # Without no_sync each micro batch is synchronised, which is slow and right.
    status, report = judge(tmp_path, ["--batch-flag", "batch_size", "--accept", "communication"], ["--batch_size", "8"])
    assert [v["summary"] for v in report["verdicts"] if v["status"] == "FAIL"] == []
    assert status == 0, report["conclusion"]
