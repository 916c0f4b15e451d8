"""`retrofit verify` lets scripts with several optimizers train two epochs, so that what differs in the second shows."""

from __future__ import annotations

from pathlib import Path

import pytest
from further_cases import with_further
from verify_command import judge

pytestmark = pytest.mark.usefixtures("forked_python")

SCRIPT = """\
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

world, rank = int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("RANK", 0))
if world > 1:
    dist.init_process_group("gloo")
torch.manual_seed(0)
nets = [torch.nn.Linear(6, 1) for _ in range(3)]
if world > 1:
    nets = [DistributedDataParallel(net) for net in nets]
optimizers = [torch.optim.SGD(net.parameters(), lr=0.05) for net in nets]
data = TensorDataset(torch.randn(160, 6), torch.randn(160, 1))
sampler = DistributedSampler(data) if world > 1 else None
loader = DataLoader(data, 8 // world, sampler=sampler, shuffle=sampler is None, drop_last=True)
for epoch in range(4):
    if sampler is not None:
        SET_EPOCH
    for number, (x, y) in enumerate(loader):
        for place, (net, optimizer) in enumerate(zip(nets, optimizers)):
            if STEPS:
                optimizer.zero_grad()
                (net(x) - y).pow(2).mean().backward()
                optimizer.step()
if rank == 0:
    torch.save([net.state_dict() for net in nets], "nets.pt")
if world > 1:
    dist.barrier()
    dist.destroy_process_group()
"""
LAYOUTS = {
    "all of a list at each batch": "True",
    "one at every fifth batch": "place == 0 or (place == 1 and number % 5 == 0)",
    "one per epoch": "place == epoch % 3",
}


@pytest.mark.parametrize("layout", with_further(LAYOUTS, "all of a list at each batch"))
def test_two_epochs_are_two_with_several_optimizers(layout: str, tmp_path: Path) -> None:
    sound = SCRIPT.replace("STEPS", LAYOUTS[layout])
    (tmp_path / "train.py").write_text(sound.replace("SET_EPOCH", "sampler.set_epoch(epoch)"))
    status, report = judge(tmp_path, [], [])
    assert status == 0, report["conclusion"]

    (tmp_path / "train.py").write_text(sound.replace("SET_EPOCH", "pass"))
    status, report = judge(tmp_path, [], [])
    assert [(v["check"], v["cause"]) for v in report["verdicts"] if v["status"] == "FAIL"] == [("reshuffle", "RF101")]
