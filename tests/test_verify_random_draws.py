"""`retrofit verify` finds ranks that draw the same random numbers in loader workers and in the training loop."""

from __future__ import annotations

from pathlib import Path

import pytest
from verify_command import judge

pytestmark = pytest.mark.usefixtures("forked_python")

SCRIPT = """\
import argparse
import functools
import os
import random

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--batch_size", type=int, default=8)
parser.add_argument("--workers", type=int, default=0)
args = parser.parse_args()
world, rank = int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("RANK", 0))
if world > 1:
    dist.init_process_group("gloo")
torch.manual_seed(0)
values = torch.randn(64, 6)


class Readings(Dataset):
    def __init__(self):
        self.rng = np.random.default_rng(OF_DATA)

    def __len__(self):
        return 64

    def __getitem__(self, index):
        return LOAD, index % 4

    def seed(self, worker, base=0):
        np.random.seed(base + worker)


def seed_worker(worker):
    seed = torch.initial_seed() % 2**32
    np.random.seed(seed)
    random.seed(seed)
    torch.utils.data.get_worker_info().dataset.rng = np.random.default_rng(seed)


data = Readings()
model = torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.ReLU(), LAYER, torch.nn.Linear(16, 4))
ddp = DistributedDataParallel(model) if world > 1 else model
optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
seed = SEED
torch.manual_seed(seed)
np.random.seed(seed)
random.seed(seed)
own = torch.Generator().manual_seed(OWN)
sampler = DistributedSampler(data, drop_last=True) if world > 1 else None
loader = DataLoader(
    data, args.batch_size, shuffle=sampler is None, sampler=sampler, drop_last=True, num_workers=args.workers,
    worker_init_fn=START, generator=torch.Generator().manual_seed(100 + rank),
)
for epoch in range(args.epochs):
    if sampler is not None:
        sampler.set_epoch(epoch)
    for x, y in loader:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(ddp(STEP), y).backward()
        optimizer.step()
if world > 1:
    dist.destroy_process_group()
"""
PLAIN = {
    "LOAD": "values[index]",
    "LAYER": "torch.nn.Identity()",
    "SEED": "1 + rank",
    "OWN": "1 + rank",
    "OF_DATA": "1 + rank",
    "START": "None",
    "STEP": "x",
}
ONE_SEED = {"SEED": "1"}
NUMPY = {"LOAD": "values[index] * float(np.random.uniform(0.9, 1.1))"}
HELD = {"LOAD": "values[index] * float(self.rng.uniform(0.9, 1.1))"}
WORKERS = ["--workers", "2"]
SAME = {
    "noise": ({**ONE_SEED, "STEP": "x + 0.1 * torch.randn_like(x)"}, []),
    "steps of a diffusion": ({**ONE_SEED, "STEP": "x / (1 + torch.randint(0, 50, (x.shape[0], 1)))"}, []),
    "noise of numpy": ({**ONE_SEED, "STEP": "x + torch.from_numpy(0.1 * np.random.randn(*x.shape)).to(x)"}, []),
    "noise of a generator": ({"OWN": "1", "STEP": "x + 0.1 * torch.randn(x.shape, generator=own)"}, []),
    "a generator of the data set": ({**HELD, "OF_DATA": "1"}, []),
    "workers by number": ({**NUMPY, "START": "np.random.seed"}, WORKERS),
    "workers by a method": ({**NUMPY, "START": "data.seed"}, WORKERS),
    "workers by a partial": ({**NUMPY, "START": "functools.partial(data.seed, base=7)"}, WORKERS),
}
SOUND = {
    "seeded by rank": ({"LAYER": "torch.nn.Dropout(0.2)", "STEP": "x + 0.1 * torch.randn_like(x)"}, []),
    "nothing drawn": (ONE_SEED, []),
    "dropout": ({**ONE_SEED, "LAYER": "torch.nn.Dropout(0.2)"}, []),
    "one number for a batch": ({**ONE_SEED, "STEP": "x * float(np.random.beta(0.4, 0.4)) + random.random()"}, []),
    "a generator for each rank": ({"STEP": "x + 0.1 * torch.randn(x.shape, generator=own)"}, []),
    "a generator of each rank's data set": (HELD, []),
    "workers by torch's seed": ({**NUMPY, "START": "seed_worker"}, WORKERS),
    "workers that fail": ({**NUMPY, "START": "lambda worker: 1 / (worker > 5)"}, WORKERS),
}
SLOW = {"steps of a diffusion", "noise of numpy", "workers by number", "workers by a partial", "nothing drawn"}
SLOW |= {"workers that fail", "seeded by rank", "noise of a generator", "a generator for each rank"}


def cases(table: dict) -> list:
    return [pytest.param(*case, id=name, marks=[pytest.mark.slow] * (name in SLOW)) for name, case in table.items()]


def judged(changes: dict[str, str], arguments: list[str], folder: Path) -> dict:
    text = SCRIPT
    for name, code in {**PLAIN, **changes}.items():
        assert name in text
        text = text.replace(name, code)
    (folder / "train.py").write_text(text)
    return judge(folder, ["--batch-flag", "batch_size"], ["--batch_size", "8", *arguments])[1]


@pytest.mark.parametrize(("changes", "arguments"), cases(SAME))
def test_the_same_numbers_on_all_ranks_are_found(changes: dict, arguments: list, tmp_path: Path) -> None:
    report = judged(changes, arguments, tmp_path)
    found = {v["check"]: v["cause"] for v in report["verdicts"] if v["status"] == "FAIL"}
    assert found == {"random_streams": "RF109"}


@pytest.mark.parametrize(("changes", "arguments"), cases(SOUND))
def test_numbers_that_may_be_the_same_are_not_accused(changes: dict, arguments: list, tmp_path: Path) -> None:
    report = judged(changes, arguments, tmp_path)
    assert [(v["check"], v["summary"]) for v in report["verdicts"] if v["status"] == "FAIL"] == []
    assert report["status"] == "PASS", report["conclusion"]
    note = next(v["note"] for v in report["verdicts"] if v["check"] == "random_streams")
    assert bool(note and "dropout masks are the same" in note) == (changes.get("SEED") == "1" and "LAYER" in changes)


@pytest.mark.slow
def test_single_numbers_for_each_row_cannot_be_compared(tmp_path: Path) -> None:
    report = judged({"STEP": "x * torch.tensor([random.random() for _ in x]).view(-1, 1).to(x)"}, [], tmp_path)
    assert report["status"] == "INCOMPLETE" and "train.py:" in report["conclusion"], report["conclusion"]
