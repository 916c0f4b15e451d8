"""`retrofit verify` on scripts that count steps, and on scripts that need a launcher's variables with one process."""

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
step = 0
if args.resume:
    state = torch.load(args.resume, map_location="cpu")
    model.module.load_state_dict(state["model"])
    step = state["step"]


def batches(done):
    epoch, skipped = divmod(done, len(loader))
    while True:
        sampler.set_epoch(epoch)
        for number, batch in enumerate(loader):
            if number >= skipped:
                yield batch
        epoch, skipped = epoch + 1, 0


for x, y in batches(step):
    if step == args.max_steps:
        break
    optimizer.zero_grad()
    (model(x) - y).pow(2).mean().backward()
    optimizer.step()
    step += 1
    if step % 3 == 0 and rank == 0:
        torch.save({"model": model.module.state_dict(), "step": step}, "last.pt")
dist.destroy_process_group()
"""


@pytest.mark.parametrize(("steps", "status"), [("0", "PASS"), ("6", "NOT APPLICABLE")], ids=["whole", "cut"])
def test_a_resume_at_a_step_is_judged_at_that_step(tmp_path: Path, steps: str, status: str) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    options = ["--batch-flag", "batch_size", "--steps", steps]
    exit_status, report = judge(tmp_path, options, ["--batch_size", "8"])
    verdicts = {verdict["check"]: verdict for verdict in report["verdicts"]}
    assert [v["summary"] for v in report["verdicts"] if v["status"] == "FAIL"] == []
    assert exit_status == 0
    assert verdicts["resume"]["status"] == status
    assert steps == "0" or "count" in verdicts["resume"]["summary"]
