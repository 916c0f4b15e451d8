"""`retrofit verify` names a loss that couples the samples of a batch, with its line, and no mean over elements so."""

from __future__ import annotations

from pathlib import Path

import pytest
from verify_command import judge

pytestmark = pytest.mark.usefixtures("forked_python")

SCRIPT = """\
import os
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

batch_size = 8 // int(os.environ.get("WORLD_SIZE", 1))
torch.manual_seed(0)
pixels = torch.randn(32, 3, 16)
labels = (pixels.sum(1) > 1.5).long()
dataset = TensorDataset(pixels, labels)


def dice(output, target):
    overlap = (output * target).sum()
    return 1 - (2 * overlap + 1) / (output.sum() + target.sum() + 1)


def loss_of(output, target):
    LOSS


model, sampler = torch.nn.Conv1d(3, 2, 1), None
if "RANK" in os.environ:
    dist.init_process_group("gloo")
    model, sampler = DDP(model), DistributedSampler(dataset)
loader = DataLoader(dataset, batch_size, shuffle=sampler is None, sampler=sampler)
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
for epoch in range(2):
    if sampler is not None:
        sampler.set_epoch(epoch)
    for image, label in loader:
        loss = loss_of(model(image), label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""
DICE = "return dice(output.softmax(1)[:, 1], target)"
VALID = "return F.cross_entropy(output, target.masked_fill(target == 1, -1), ignore_index=-1)"


@pytest.mark.parametrize(("loss", "cause", "place"), [(DICE, "RF309", "train.py:16"), (VALID, "RF302", "")])
def test_the_cause_of_another_loss(loss: str, cause: str, place: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT.replace("LOSS", loss))
    status, report = judge(tmp_path, ["--html", ""], [])
    (verdict,) = [verdict for verdict in report["verdicts"] if verdict["check"] == "loss"]
    assert (status, verdict["status"], verdict["cause"]) == (1, "FAIL", cause)
    assert place in verdict["summary"]
