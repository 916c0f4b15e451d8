"""Numbers that each rank draws for its batch, and what they decide: `retrofit verify` runs a script with them, too."""

from __future__ import annotations

from pathlib import Path

import pytest
from further_cases import with_further
from verify_command import judge

pytestmark = pytest.mark.usefixtures("forked_python")

SCRIPT = """\
import argparse
import os
import random

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, default=8)
args = parser.parse_args()
rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
if world > 1:
    dist.init_process_group("gloo")
torch.manual_seed(0)
values = torch.randn(96, 4, generator=torch.Generator().manual_seed(1))


class Data(Dataset):
    def __len__(self):
        return 96

    def __getitem__(self, index):
        return values[index], values[index].sum()


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.more, self.last = torch.nn.Linear(4, 4), KIND, torch.nn.Linear(4, 1)

    def forward(self, x):
        x = self.first(x)
        return self.last(MORE)


def total(value):
    if world > 1:
        dist.all_reduce(value)
    return value


def look(loss):
    mean = total(loss) / world
    if rank == 0:
        print(f"loss {mean.item():.4f}")


def together(number):
    numbers = [number]
    if world > 1:
        dist.broadcast_object_list(numbers)
    return numbers[0]


net, data = Net(), Data()
model = DistributedDataParallel(net, find_unused_parameters=True) if world > 1 else net
optimizer = torch.optim.SGD(net.parameters(), 0.05)
sampler = DistributedSampler(data, world, rank)
loader = DataLoader(data, args.batch, sampler=sampler)
random.seed(SEED)
np.random.seed(SEED)
own, rng = random.Random(SEED), np.random.default_rng(SEED)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for x, y in loader:
        BEFORE
        loss = (model(x).flatten() - y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        STEP
        AFTER
if world > 1:
    dist.destroy_process_group()
"""
PLAIN = {
    "KIND": "torch.nn.Linear(4, 4)",
    "MORE": "x + self.more(x)",
    "SEED": "7 + rank",
    "BEFORE": "pass",
    "STEP": "optimizer.step()",
    "AFTER": "pass",
}
LOOK = "if {} < 0.3: look(loss.detach())"
PARTED = {
    "a look at the loss": {"AFTER": LOOK.format("random.random()")},
    "a batch that is left out": {"BEFORE": "if np.random.rand() < 0.3: continue"},
    "a step that is left out": {"STEP": "if rng.random() < 0.7: optimizer.step()"},
    "what is reduced": {"AFTER": "total(own.choice([x, y, loss]).detach().clone())"},
    "the order of calls": {"AFTER": "for value in random.sample([x[0], y, loss], 3): total(value.detach().clone())"},
    "noise on the weights": {"AFTER": "net.last.bias.data += 0.01 * np.random.randn()"},
}
SOUND = {
    "a look at the loss, one seed": {"SEED": "7", "AFTER": LOOK.format("random.random()")},
    "a number of rank 0": {"AFTER": LOOK.format("together(random.random())")},
    "a weight of mixup": {"BEFORE": "share = np.random.beta(0.4, 0.4); x = share * x + (1 - share) * x.flip(0)"},
    "augmentation of some batches": {"BEFORE": "if rng.random() < 0.5: x = x * own.uniform(0.9, 1.1)"},
    "a layer that is left out": {"MORE": "x if self.training and random.random() < 0.3 else x + self.more(x)"},
}
OWN_NUMBERS = {"a number of rank 0", "a weight of mixup", "augmentation of some batches", "a layer that is left out"}


def judged(changes: dict[str, str], folder: Path, *flags: str) -> tuple[int, dict]:
    text = SCRIPT
    for name, code in {**PLAIN, **changes}.items():
        assert name in text
        text = text.replace(name, code)
    (folder / "train.py").write_text(text)
    return judge(folder, ["--batch-flag", "batch", "--hang-after", "8", *flags], ["--batch", "8"])


@pytest.mark.parametrize("name", with_further(PARTED, *{*PARTED} - {"a look at the loss"}))
def test_what_a_draw_of_each_rank_decides_for_all_is_found(name: str, tmp_path: Path) -> None:
    status, report = judged(PARTED[name], tmp_path)
    assert status == 1, report["conclusion"]
    assert report["faults"][0]["cause"] == "RF409", report["conclusion"]
    assert "each rank draws a number of its own for its batch (train.py:" in report["conclusion"]


@pytest.mark.parametrize("name", with_further(SOUND, *{*SOUND} - {"a number of rank 0", "a weight of mixup"}))
def test_a_draw_that_decides_for_a_rank_alone_is_not_accused(name: str, tmp_path: Path) -> None:
    status, report = judged(SOUND[name], tmp_path)
    assert (status, report["status"]) == (0, "PASS"), report["conclusion"]
    note = next(verdict["note"] for verdict in report["verdicts"] if verdict["check"] == "determinism")
    assert ("draws a number of its own for its batch" in (note or "")) == (name in OWN_NUMBERS)


def test_statistics_of_a_layer_that_a_rank_leaves_out_are_not_waited_for(tmp_path: Path) -> None:
    changes = {**SOUND["a layer that is left out"], "KIND": "torch.nn.BatchNorm1d(4)"}
    status, report = judged(changes, tmp_path, "--accept", "batchnorm")
    assert (status, report["status"]) == (0, "PASS"), report["conclusion"]
