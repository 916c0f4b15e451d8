"""`retrofit verify` on scripts that count steps, and on scripts that need a launcher's variables with one process."""

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
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--batch_size", type=int, default=8)
parser.add_argument("--max_steps", type=int, default=12)
parser.add_argument("--resume", default="")
args = parser.parse_args()
dist.init_process_group("gloo")
rank = int(os.environ["LOCAL_RANK"])
torch.manual_seed(0)
data = TensorDataset(torch.randn(64, 5), torch.randn(64, 1))
model = DistributedDataParallel(torch.nn.Linear(5, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
sampler = DistributedSampler(data)
loader = DataLoader(data, args.batch_size, sampler=sampler)
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.05, epochs=4, steps_per_epoch=len(loader))
step = 0
if args.resume:
    state = torch.load(args.resume, map_location="cpu")
    model.module.load_state_dict(state["model"])
    scheduler.load_state_dict(state["scheduler"])
    optimizer.load_state_dict(state["optimizer"])
    step = state["step"]


BATCHES


for x, y in batches(step):
    if step == args.max_steps:
        break
    optimizer.zero_grad()
    (model(x) - y).pow(2).mean().backward()
    optimizer.step()
    scheduler.step()
    step += 1
    if step % 3 == 0 and rank == 0:
        states = {"optimizer": optimizer.state_dict(), "scheduler": scheduler.state_dict()}
        torch.save({"model": model.module.state_dict(), "step": step, **states}, "last.pt")
dist.destroy_process_group()
"""


LOOPS = {  # ways to count the steps of an epoch by the length of the loader
    "skipped": """
def batches(done):
    epoch, skipped = divmod(done, len(loader))
    while True:
        sampler.set_epoch(epoch)
        for number, batch in enumerate(loader):
            if number >= skipped:
                yield batch
        epoch, skipped = epoch + 1, 0
""",
    "next": """
def batches(done):
    for epoch in range(done // len(loader), 100):
        sampler.set_epoch(epoch)
        it = iter(loader)
        for number in range(len(loader)):
            batch = next(it)
            if number >= done - epoch * len(loader):
                yield batch
""",
    "zip": """
def batches(done):
    for epoch in range(done // len(loader), 100):
        sampler.set_epoch(epoch)
        number = epoch * len(loader)
        for number, batch in zip(range(number, number + len(loader)), loader):
            if number >= done:
                yield batch
        assert number + 1 == (epoch + 1) * len(loader)
""",
}


STEPS = {"whole": "0", "not_cut": "12", "cut": "6"}
CASES = [f"{name}-{loop}" for name in STEPS for loop in LOOPS]
QUICK = {"whole-zip", "not_cut-next", "cut-skipped", "cut-next"}


@pytest.mark.parametrize("case", with_further(CASES, *{*CASES} - QUICK))
def test_a_resume_at_a_step_is_judged_at_that_step(tmp_path: Path, case: str) -> None:
    name, _, loop = case.partition("-")
    (tmp_path / "train.py").write_text(SCRIPT.replace("BATCHES", LOOPS[loop].strip()))
    options = ["--batch-flag", "batch_size", "--steps", STEPS[name]]
    exit_status, report = judge(tmp_path, options, ["--batch_size", "8"])
    verdicts = {verdict["check"]: verdict for verdict in report["verdicts"]}
    assert [v["summary"] for v in report["verdicts"] if v["status"] == "FAIL"] == []
    assert exit_status == 0
    assert verdicts["resume"]["status"] == "PASS"
    assert verdicts["lr"]["status"] == "PASS"


def test_an_epoch_that_is_counted_by_the_data_is_not_cut(tmp_path: Path) -> None:
    loop = """
def batches(done):
    for epoch in range(100):
        sampler.set_epoch(epoch)
        it = iter(loader)
        for number in range(len(data) // (args.batch_size * dist.get_world_size())):
            yield next(it)
"""
    (tmp_path / "train.py").write_text(SCRIPT.replace("BATCHES", loop.strip()).replace("len(loader))", "8)", 1))
    status, report = judge(tmp_path, ["--batch-flag", "batch_size", "--steps", "6"], ["--batch_size", "8"])
    assert [v["summary"] for v in report["verdicts"] if v["status"] == "FAIL"] == []
    verdicts = {verdict["check"]: verdict["status"] for verdict in report["verdicts"]}
    assert (status, verdicts["loss"]) == (0, "PASS")
