"""`retrofit verify` on batches that are collected before they are trained on, and on loaders built in each epoch."""

from __future__ import annotations

from pathlib import Path

import pytest
from verify_command import judge

pytestmark = pytest.mark.usefixtures("forked_python")

START = """\
import argparse, itertools, os
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, TensorDataset

rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
if world > 1:
    dist.init_process_group("gloo")
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.Linear(8, 1))
model = DistributedDataParallel(net) if world > 1 else net
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
torch.manual_seed(1 + rank)


def train(x, y):
    optimizer.zero_grad()
    nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()

"""
COLLECTED = """
x = torch.arange(48.0)[:, None] / 48 + torch.zeros(4)
data = TensorDataset(x, x.sum(1, keepdim=True))
sampler = DistributedSampler(data, world, rank, seed=3)
loader = DataLoader(data, 8 // world, sampler=sampler)
for _ in loader:  # a look at the data
    pass
for epoch in range(2):
    sampler.set_epoch(epoch)
    for batch in list(loader):
        train(*batch)
"""
BUILT_AGAIN = """
x = torch.arange(48.0)[:, None] / 48 + torch.zeros(4)


def loader_of(epoch):
    data = TensorDataset(x, x.sum(1, keepdim=True))
    sampler = DistributedSampler(data, world, rank, seed=3)
    sampler.set_epoch(epoch)
    return DataLoader(data, 8 // world, sampler=sampler)


for epoch in range(2):
    for batch in loader_of(epoch):
        train(*batch)
    if rank == 0:
        torch.save(net.state_dict(), "model.pt")
"""
STREAMS = """

class Waves(IterableDataset):
    def __init__(self, num):
        self.num = num

    def __iter__(self):
        for i in itertools.islice(range(self.num), rank, None, world):
            wave = torch.sin(torch.linspace(0, 3, 4) + i)
            yield wave, wave[:1]


for epoch in range(2):
    for batch in DataLoader(Waves(48), 8 // world):
        train(*batch)
    net.eval()
    sums = torch.zeros(2)
    with torch.no_grad():
        for x, y in DataLoader(Waves(19), 4):
            sums += torch.tensor([(net(x) - y).abs().sum().item(), float(len(x))])
    if world > 1:
        dist.all_reduce(sums)
    net.train()
    print(f"error {sums[0] / sums[1]:.6f}")
"""


def verdicts(folder: Path, script: str) -> tuple[int, dict[str, str]]:
    (folder / "train.py").write_text(START + script)
    status, report = judge(folder, [], [])
    return status, {
        verdict["check"]: f"{verdict['status']} {verdict['cause'] or ''}".strip() for verdict in report["verdicts"]
    }


@pytest.mark.parametrize("script", [COLLECTED, BUILT_AGAIN, STREAMS], ids=["collected", "built_again", "streams"])
def test_they_are_compared(script: str, tmp_path: Path) -> None:
    status, found = verdicts(tmp_path, script)
    assert "FAIL" not in " ".join(found.values()), found
    assert status == 0
    assert {found[check] for check in ("shards", "loss", "gradients", "parameters", "ranks_agree")} == {"PASS"}
    if script == BUILT_AGAIN:  # the epochs of loaders that are built again are epochs
        assert found["reshuffle"] == "PASS"


@pytest.mark.parametrize(
    "script",
    [COLLECTED, pytest.param(BUILT_AGAIN, marks=pytest.mark.slow)],
    ids=["collected", "built_again"],
)
def test_an_order_that_stays_is_found(script: str, tmp_path: Path) -> None:
    script = script.replace("set_epoch(epoch)", "set_epoch(0)")
    natural = script.replace("sampler=sampler", "sampler=sampler if world > 1 else None, shuffle=world == 1")
    status, found = verdicts(tmp_path, natural)
    assert (status, found["reshuffle"]) == (1, "FAIL RF101")


@pytest.mark.parametrize(("shuffle", "expected"), [("True", "FAIL RF101"), ("False", "PASS")])
def test_a_shuffled_order_that_stays_on_one_process_too_is_found(shuffle: str, expected: str, tmp_path: Path) -> None:
    script = BUILT_AGAIN.replace("set_epoch(epoch)", "set_epoch(0)").replace("seed=3", f"seed=3, shuffle={shuffle}")
    _, found = verdicts(tmp_path, script)
    assert found["reshuffle"] == expected


def test_collected_batches_of_all_ranks_are_found(tmp_path: Path) -> None:
    script = COLLECTED.replace(
        "DistributedSampler(data, world, rank, seed=3)", "DistributedSampler(data, 1, 0, seed=3)"
    )
    status, found = verdicts(tmp_path, script)
    assert (status, found["shards"]) == (1, "FAIL RF103")


def test_a_stream_that_is_evaluated_in_part_is_found(tmp_path: Path) -> None:
    script = STREAMS.replace(
        "for x, y in DataLoader(Waves(19), 4)", "for x, y in list(DataLoader(Waves(19), 4))[rank:]"
    )
    status, found = verdicts(tmp_path, script)
    assert status == 1 and "RF401" in found["metrics"], found
