"""`retrofit verify` on weights that the script changes itself between two optimizer steps."""

from __future__ import annotations

from pathlib import Path

import pytest
from further_cases import with_further
from verify_command import judge

pytestmark = pytest.mark.usefixtures("forked_python")

SCRIPT = """\
import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.key, self.head = nn.Linear(6, 4), nn.Linear(6, 4), nn.Linear(4, 1)
        self.key.load_state_dict(self.query.state_dict())
        self.key.requires_grad_(False)

    def forward(self, x):
        with torch.no_grad():
            for q, k in zip(self.query.parameters(), self.key.parameters()):
                k.data = 0.9 * k.data + 0.1 * q.data
            target = self.key(x)
        found = self.query(x)
        return self.head(found) + (found - target).pow(2).mean(1, keepdim=True)


parser = argparse.ArgumentParser()
parser.add_argument("--batch_size", type=int, default=8)
parser.add_argument("--resume", default="")
args = parser.parse_args()
world, rank = int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("RANK", 0))
if world > 1:
    dist.init_process_group("gloo")
torch.manual_seed(3)
data = TensorDataset(torch.randn(64, 6), torch.randn(64, 1))
net, first_epoch = Net(), 0
model = DistributedDataParallel(net, broadcast_buffers=False) if world > 1 else net
optimizer = torch.optim.SGD(model.parameters(), 0.1)
sampler = DistributedSampler(data) if world > 1 else None
loader = DataLoader(data, args.batch_size, sampler=sampler, shuffle=sampler is None)
if args.resume:
    state = torch.load(args.resume, map_location="cpu")
    net.load_state_dict(state["net"], strict=False)
    first_epoch = state["epoch"]
for epoch in range(first_epoch, 2):
    if sampler is not None:
        sampler.set_epoch(epoch)
    else:
        torch.manual_seed(epoch)
    for x, y in loader:
        optimizer.zero_grad()
        (model(x) - y).pow(2).mean().backward()
        optimizer.step()
        for p in net.head.parameters():
            p.data.clamp_(-0.05, 0.05)
    if rank == 0:
        torch.save({"net": net.state_dict(), "epoch": epoch + 1}, "last.pt")
"""


def test_weights_that_are_clamped_and_averaged_between_steps_are_resumed(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    status, report = judge(tmp_path, ["--batch-flag", "batch_size"], ["--batch_size", "8"])
    assert [v["summary"] for v in report["verdicts"] if v["status"] == "FAIL"] == []
    assert status == 0
    checks = {verdict["check"]: verdict["status"] for verdict in report["verdicts"]}
    assert checks["resume"] == checks["checkpoint"] == "PASS"


def test_averaged_weights_that_are_not_saved_are_found(tmp_path: Path) -> None:
    saved = '{k: v for k, v in net.state_dict().items() if "key" not in k}'
    (tmp_path / "train.py").write_text(SCRIPT.replace('"net": net.state_dict()', f'"net": {saved}'))
    status, report = judge(tmp_path, ["--batch-flag", "batch_size"], ["--batch_size", "8"])
    resume = next(verdict for verdict in report["verdicts"] if verdict["check"] == "resume")
    assert status == 1 and resume["status"] == "FAIL" and resume["cause"] == "RF507"


IN_FORWARD = """\
import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--batch_size", type=int, default=8)
args = parser.parse_args()
world, rank = int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("RANK", 0))
if world > 1:
    dist.init_process_group("gloo")


def mean(values):
    if world > 1:
        values = values / world
        dist.all_reduce(values)
    return values


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(32, 4, max_norm=MAX_NORM)
        self.shift, self.head = nn.Parameter(torch.zeros(4)), nn.Linear(4, 1)
        self.is_set = False

    def forward(self, number):
        x = self.table(number)
        with torch.no_grad():
            CHANGE
        return self.head(x + self.shift)


torch.manual_seed(3)
data = TensorDataset(torch.randint(0, 32, (64,)), torch.randn(64, 1))
net = Net()
model = DistributedDataParallel(net) if world > 1 else net
optimizer = torch.optim.SGD(model.parameters(), 0.05)
sampler = DistributedSampler(data, world, rank)
loader = DataLoader(data, args.batch_size, sampler=sampler)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for x, y in loader:
        optimizer.zero_grad()
        (model(x) - y).pow(2).mean().backward()
        optimizer.step()
if world > 1:
    dist.destroy_process_group()
"""
FIRST = "the first forward pass changes {} in place on each rank"
LATER = "something else than the optimizer changes {} before the step, in place on each rank"
SET = "if not self.is_set: self.is_set = bool(self.shift.data.copy_({}).any())"
CHANGES = {
    "rows that are scaled": ({"MAX_NORM": "0.5"}, FIRST.format("table.weight")),
    "a shift of the first batch": ({"CHANGE": SET.format("-x.mean(0)")}, FIRST.format("shift")),
    "a shift that follows the batches": ({"CHANGE": "self.shift.data.lerp_(x.mean(0), 0.1)"}, FIRST.format("shift")),
    "a bound by the batch, later": (
        {"CHANGE": "if self.is_set: self.shift.data.clamp_(max=x.max() - 2)\n            self.is_set = self.training"},
        LATER.format("shift"),
    ),
}
SAME_CHANGES = {
    "a shift of the first batch of all ranks": SET.format("mean(-x.mean(0))"),
    "a bound": "self.shift.data.clamp_(-0.01, 0.01)",
}


def judged_in_forward(changes: dict[str, str], folder: Path) -> tuple[int, dict]:
    text = IN_FORWARD
    for name, code in {"MAX_NORM": "None", "CHANGE": "pass", **changes}.items():
        text = text.replace(name, code)
    (folder / "train.py").write_text(text)
    return judge(folder, ["--batch-flag", "batch_size"], ["--batch_size", "8"])


@pytest.mark.parametrize("name", with_further(CHANGES, "rows that are scaled", "a shift of the first batch"))
def test_weights_that_a_forward_pass_changes_by_own_samples_are_named(name: str, tmp_path: Path) -> None:
    changes, expected = CHANGES[name]
    status, report = judged_in_forward(changes, tmp_path)
    assert status == 1 and report["faults"][0]["cause"] == "RF211", report["conclusion"]
    assert expected in report["conclusion"]
    assert len(report["faults"]) == 1, report["conclusion"]


@pytest.mark.parametrize("name", SAME_CHANGES)
def test_weights_that_a_forward_pass_changes_on_all_ranks_are_compared(name: str, tmp_path: Path) -> None:
    status, report = judged_in_forward({"CHANGE": SAME_CHANGES[name]}, tmp_path)
    assert (status, report["status"]) == (0, "PASS"), report["conclusion"]
