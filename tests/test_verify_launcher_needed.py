"""`retrofit verify` gives scripts that need a launcher its variables, and lets nn.SyncBatchNorm run on the CPU."""

from __future__ import annotations

from pathlib import Path

import pytest
from verify_command import judge

from retrofit.verify.evidence import RankTrace, Run
from retrofit.verify.runs.own_processes import meets_at_own_port
from retrofit.verify.trace.events import GroupJoin

pytestmark = pytest.mark.usefixtures("forked_python")

SCRIPT = """\
import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--batch_size", type=int, default=16)
args = parser.parse_args()
START
torch.manual_seed(0)
points = torch.randn(128, 6)
data = TensorDataset(points, (points.sum(1) > 0).long())
sampler = DistributedSampler(data)
loader = DataLoader(data, args.batch_size, sampler=sampler)
model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
if SYNCHRONISED:
    model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
model = DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
"""
JOIN = 'dist.init_process_group("gloo")'
MESH = "from torch.distributed.device_mesh import init_device_mesh as mesh"
STARTS = {
    "at once": JOIN,
    "number of None": f'local_rank = int(os.getenv("LOCAL_RANK"))\n{JOIN}',
    "assertion": f'assert int(os.environ.get("WORLD_SIZE", -1)) > 0, "use torchrun"\n{JOIN}',
    "message and end": f'if "RANK" not in os.environ:\n    print("use torchrun")\n    raise SystemExit(0)\n{JOIN}',
    "device mesh": f'{MESH}\nmesh("cpu", (int(os.environ["WORLD_SIZE"]),))',
}
SLOW = {"at once", "number of None", "assertion", "device mesh"}


@pytest.mark.parametrize("start", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in STARTS])
def test_a_script_that_needs_a_launcher_is_compared(start: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT.replace("START", STARTS[start]).replace("SYNCHRONISED", "True"))
    status, report = judge(tmp_path, ["--batch-flag", "batch_size"], ["--batch_size", "16"])
    assert [v["summary"] for v in report["verdicts"] if v["status"] == "FAIL"] == []
    assert status == 0
    assert "batchnorm" in [verdict["check"] for verdict in report["verdicts"] if verdict["status"] == "PASS"]


def test_batchnorm_that_is_not_synchronised_is_a_fault(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT.replace("START", JOIN).replace("SYNCHRONISED", "False"))
    status, report = judge(tmp_path, ["--batch-flag", "batch_size"], ["--batch_size", "16"])
    assert status == 1
    assert {v["check"]: v["cause"] for v in report["verdicts"] if v["status"] == "FAIL"} == {"batchnorm": "RF206"}


def test_an_error_that_no_launcher_takes_away_is_the_script_s(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import torch\nraise ValueError('no data')\n")
    status, report = judge(tmp_path, [], [])
    failed = [verdict for verdict in report["verdicts"] if verdict["status"] == "FAIL"]
    assert status == 1 and [verdict["cause"] for verdict in failed] == ["RF001"]


@pytest.mark.parametrize(
    ("one", "many", "expected"),
    [
        ([], [("29501", "29501")], False),  # no group on one process
        ([("29533", None)], [("29501", "29501")], True),  # os.environ.setdefault("MASTER_PORT", "29533")
        ([("29533", None)], [("29533", "29501")], True),  # os.environ["MASTER_PORT"] = "29533"
        ([], [("29533", "29501")], True),
        ([("40001", None)], [("40002", "29501")], False),  # a free one each time
        ([("29507", "29507")], [("29501", "29501")], False),  # with a launcher's variables
        ([(None, None)], [(None, "29501")], False),  # file://
    ],
)
def test_runs_with_a_port_of_the_script_are_made_in_turn(one, many, expected):
    runs = []
    for ports, number in ((one, 1), (many, 2)):
        joins = [GroupJoin("gloo", number, 0, *pair) for pair in ports]
        runs.append(Run("one", number, [RankTrace(rank, list(joins)) for rank in range(number)], [0] * number))
    assert meets_at_own_port(*runs) is expected
