"""State that each rank has of its own: a resume that gives all ranks rank 0's is named after the training's fault."""

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
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, default=8)
parser.add_argument("--resume", default="")
args = parser.parse_args()
rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
if world > 1:
    dist.init_process_group("gloo")
torch.manual_seed(0)
x = torch.randn(64, 4, generator=torch.Generator().manual_seed(1))


class Data(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        return x[index], x[index].square().sum()


net, frozen, first = torch.nn.Linear(4, 1), torch.nn.Linear(4, 1), 0
frozen.load_state_dict(net.state_dict())
frozen.requires_grad_(False)
scale = torch.ones(())
optimizer = torch.optim.SGD(net.parameters(), 0.02, momentum=0.9)
if args.resume:
    state = torch.load(args.resume, map_location="cpu")
    net.load_state_dict(state["net"])
    frozen.load_state_dict(state["frozen"])
    optimizer.load_state_dict(state["optimizer"])
    first, scale = state["epoch"], state["scale"]
model = DistributedDataParallel(net) if world > 1 else net
data = Data()
sampler = DistributedSampler(data, world, rank)
loader = DataLoader(data, args.batch, sampler=sampler)
for epoch in range(first, 2):
    sampler.set_epoch(epoch)
    for a, b in loader:
        goal = (b + 0.5 * frozen(a).flatten().tanh()) / scale
        loss = FACTOR * (model(a).flatten() - goal).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        UPDATE
    if rank == 0:
        torch.save(SAVED, "last.pt")
if world > 1:
    dist.barrier()
    dist.destroy_process_group()
"""
SAVED = """\
{"net": net.state_dict(), "frozen": frozen.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch + 1,
                    "scale": scale}"""
COPY = "frozen.load_state_dict(net.state_dict())"
PARTED = {
    "a copy that rank 0 renews": {"UPDATE": f"if rank == 0: {COPY}"},
    "a scale of the rank's own samples": {"UPDATE": "scale = 0.9 * scale + 0.1 * b.mean()"},
}
LOST = {
    "a sound training": {"SAVED": SAVED.replace("scale}", "scale * 2}")},
    "a loss that is not averaged": {"FACTOR": "world", "SAVED": SAVED.replace("scale}", "scale * 2}")},
}


def judged(changes: dict[str, str], folder: Path) -> dict:
    text = SCRIPT
    for name, code in {"FACTOR": "1", "UPDATE": COPY, "SAVED": SAVED, **changes}.items():
        assert name in text
        text = text.replace(name, code)
    (folder / "train.py").write_text(text)
    return judge(folder, ["--batch-flag", "batch"], ["--batch", "8"])[1]


@pytest.mark.parametrize("name", with_further(PARTED, "a copy that rank 0 renews"))
def test_a_resume_from_the_state_of_rank_0_follows_from_the_training(name: str, tmp_path: Path) -> None:
    report = judged(PARTED[name], tmp_path)
    resume = next(verdict for verdict in report["verdicts"] if verdict["check"] == "resume")
    assert resume["status"] == "FAIL" and resume["cause"] is None, resume["summary"]
    assert "(see loss)" in resume["summary"]
    assert "RF507" not in report["conclusion"] and len(report["faults"]) == 1, report["conclusion"]


@pytest.mark.parametrize("name", with_further(LOST, "a sound training"))
def test_what_rank_0_does_not_restore_either_is_named(name: str, tmp_path: Path) -> None:
    report = judged(LOST[name], tmp_path)
    resume = next(verdict for verdict in report["verdicts"] if verdict["check"] == "resume")
    assert (resume["status"], resume["cause"]) == ("FAIL", "RF507"), resume["summary"]
