"""`retrofit verify` on streams that loader workers split: each worker reads its own part, as in its own process."""

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
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, default=8)
args = parser.parse_args()
rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
if world > 1:
    dist.init_process_group("gloo")


class Records(IterableDataset):
    part = None

    def __iter__(self):
        worker = get_worker_info()
        number, of = self.part or (rank * worker.num_workers + worker.id, world * worker.num_workers)
        for index in range(number, 96, of):
            generator = torch.Generator().manual_seed(index)
            x = torch.randn(4, generator=generator)
            yield x, x.sum()


def split(number):
    worker = get_worker_info()
    worker.dataset.part = rank * worker.num_workers + number, world * worker.num_workers


torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
if world > 1:
    model = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
loader = DataLoader(Records(), args.batch, num_workers=2)
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        (model(x).squeeze(1) - y).pow(2).mean().backward()
        optimizer.step()
if rank == 0:
    torch.save(getattr(model, "module", model).state_dict(), "model.pt")
"""
NUMBER = "rank * worker.num_workers + worker.id, world * worker.num_workers"
SOUND = {
    "asked in __iter__": (),
    "split by worker_init_fn": ((NUMBER, "worker.id, worker.num_workers"), ("=2)", "=2, worker_init_fn=split)")),
}
MISTAKES = {
    "rank plus worker": ((NUMBER, "rank + worker.id, world * worker.num_workers"),),
    "worker alone": ((NUMBER, "worker.id, worker.num_workers"),),
    "the group, in a spawned worker": (
        (NUMBER, "mine() * worker.num_workers + worker.id, all_ranks() * worker.num_workers"),
        (
            "class Records",
            "def mine():\n    return dist.get_rank() if dist.is_initialized() else 0\n\n\n"
            "def all_ranks():\n    return dist.get_world_size() if dist.is_initialized() else 1\n\n\nclass Records",
        ),
        ("=2)", '=2, multiprocessing_context="spawn")'),
    ),
}


def judged(folder: Path, changes: tuple[tuple[str, str], ...]) -> tuple[int, dict]:
    script = SCRIPT
    for before, after in changes:
        assert before in script
        script = script.replace(before, after, 1)
    (folder / "train.py").write_text(script)
    return judge(folder, ["--batch-flag", "batch"], ["--batch", "8"])


@pytest.mark.parametrize("name", SOUND)
def test_a_stream_that_its_workers_split_is_not_accused(tmp_path: Path, name: str) -> None:
    status, report = judged(tmp_path, SOUND[name])
    assert (status, report["status"]) == (0, "PASS"), report["conclusion"]


@pytest.mark.parametrize("name", MISTAKES)
def test_parts_that_overlap_are_found(tmp_path: Path, name: str) -> None:
    status, report = judged(tmp_path, MISTAKES[name])
    causes = {verdict["check"]: verdict["cause"] for verdict in report["verdicts"] if verdict["status"] == "FAIL"}
    assert status == 1 and causes.get("shards") == "RF104", report["conclusion"]
