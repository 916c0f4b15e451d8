"""`retrofit verify` gives each rank a clock of its own, and finds names that are made of it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from verify_command import judge

SHIFTED = """\
import datetime, pickle, time
before = time.time(), datetime.datetime.now(), datetime.datetime.now(datetime.timezone.utc), time.time_ns()
from retrofit.verify.trace.randomness.clock import shift_clock
shift_clock(3600.0)


class Own(datetime.datetime):
    pass


assert 3599 < time.time() - before[0] < 3610
assert 3599 < (datetime.datetime.now() - before[1]).total_seconds() < 3610
assert 3599 < (datetime.datetime.now(tz=datetime.timezone.utc) - before[2]).total_seconds() < 3610
assert 3599 < (datetime.datetime.utcnow() - before[2].replace(tzinfo=None)).total_seconds() < 3610
assert 3599 < (datetime.datetime.today() - before[1]).total_seconds() < 3610
assert 3599e9 < time.time_ns() - before[3] < 3610e9
assert type(Own.now()) is Own and type(datetime.datetime.now()) is datetime.datetime
assert time.mktime(time.localtime()) - before[0] > 3598 and time.strftime("%Y", time.gmtime(0)) == "1970"
assert time.strftime("%s") == str(int(time.time())) and time.ctime(0)[-4:] in ("1970", "1969")
now = datetime.datetime.now()
assert pickle.loads(pickle.dumps(now)) == now
started = time.perf_counter()
"""
NAMED = """\
import argparse, datetime, os, time, uuid
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
if world > 1:
    dist.init_process_group("gloo")
torch.manual_seed(0)
net = nn.Linear(3, 1)
model = nn.parallel.DistributedDataParallel(net) if world > 1 else net
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = TensorDataset(torch.randn(24, 3), torch.randn(24, 1))
sampler = DistributedSampler(data, world, rank)
NAME
os.makedirs(out, exist_ok=True)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for x, y in DataLoader(data, 8 // world, sampler=sampler):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
    if rank == 0:
        torch.save(net.state_dict(), f"{out}/model.pt")
"""


def test_the_clock_is_later_and_its_objects_are_those_of_the_real_one() -> None:
    subprocess.run([sys.executable, "-W", "ignore", "-c", SHIFTED], check=True)


@pytest.mark.usefixtures("forked_python")
@pytest.mark.parametrize(
    "name",
    [
        'out = "runs/" + time.strftime("%Y%m%d_%H%M%S")',
        pytest.param(
            'out = os.path.join("runs", f"{datetime.datetime.now():%b%d_%H-%M-%S}", "files")', marks=pytest.mark.slow
        ),
        pytest.param('out = f"runs/{uuid.uuid4().hex}"', marks=pytest.mark.slow),
        "out = f\"runs/version_{sum(os.path.isdir(f'runs/version_{i}') for i in range(9))}\"\nos.makedirs(out)\n"
        "if world > 1: dist.barrier()",
    ],
    ids=["strftime", "datetime", "uuid", "number"],
)
def test_a_name_that_each_rank_makes_by_itself_is_found(name: str, tmp_path: Path) -> None:
    if "version" in name:  # the ranks one after the other
        name = f"if world > 1 and rank: time.sleep(1)\n{name}"
    (tmp_path / "train.py").write_text(NAMED.replace("NAME", name))
    status, report = judge(tmp_path, [], [])
    found = {verdict["check"]: verdict["cause"] for verdict in report["verdicts"] if verdict["status"] == "FAIL"}
    assert status == 1 and set(found.values()) == {"RF509"}, found


@pytest.mark.usefixtures("forked_python")
@pytest.mark.parametrize(
    "name",
    [
        'names = [time.strftime("%H%M%S")]\nif world > 1: dist.broadcast_object_list(names)\nout = f"runs/{names[0]}"',
        'out = f"runs/rank{rank}"',
        'out = "runs/files"\nif rank == 0: os.makedirs(time.strftime("runs/%H%M%S"))',
    ],
    ids=["broadcast", "of the rank", "of rank 0 alone"],
)
def test_a_name_that_all_ranks_have_is_sound(name: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(NAMED.replace("NAME", name))
    status, report = judge(tmp_path, [], [])
    assert [verdict["check"] for verdict in report["verdicts"] if verdict["status"] == "FAIL"] == []
    assert status == 0
