"""`retrofit why` on real processes: a late rank and its reason, the files it leaves alone, and its errors."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed.fsdp

pytestmark = pytest.mark.usefixtures("forked_python")

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = """\
import argparse
import os
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

parser = argparse.ArgumentParser()
parser.add_argument("--slow", default="")
args = parser.parse_args()
rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
if world > 1:
    dist.init_process_group("gloo")


def pause(part):
    if part == args.slow and rank == 1:
        time.sleep(0.1)


class Samples(Dataset):
    def __len__(self):
        return 512

    def __getitem__(self, index):
        if index % 8 == 0:
            pause("data")
        return torch.full((8,), float(index % 7)), torch.tensor(float(index % 7))


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)

    def forward(self, x):
        pause("forward")
        return self.layer(x).flatten()


model = DistributedDataParallel(Model()) if world > 1 else Model()
optimizer = torch.optim.SGD(model.parameters(), 0.01)
sampler = DistributedSampler(Samples(), world, rank)
for epoch in range(4):
    for x, y in DataLoader(Samples(), 16, sampler=sampler):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
    with open("log.txt", "a") as log:
        log.write("an epoch\\n")
"""


def why(folder: Path, *arguments: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "retrofit", "why", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)


@pytest.fixture
def script(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(SCRIPT)
    return tmp_path


def test_a_rank_with_a_slow_forward_pass_is_named(script: Path) -> None:
    result = why(script, "train.py", "--steps", "16", "--json", "card.json", "--", "--slow", "forward")
    assert result.returncode == 0, result.stderr
    card = json.loads((script / "card.json").read_text())
    first = card["causes"][0]
    assert (first["name"], first["rank"], first["phase"]) == ("late-rank", 1, "forward")
    assert 0.05 < first["seconds"] < 0.5
    assert card["speedup"] is not None and 0 < card["speedup"] < 2
    assert "rank 1 is late" in result.stdout and "make rank 1 as fast as the" in result.stdout
    assert sorted(path.name for path in script.iterdir()) == ["card.json", "train.py", "why.html"]


@pytest.mark.slow
def test_a_rank_with_slow_samples_is_named(script: Path) -> None:
    result = why(script, "train.py", "--steps", "16", "--no-single", "--json", "card.json", "--", "--slow", "data")
    assert result.returncode == 0, result.stderr
    card = json.loads((script / "card.json").read_text())
    assert [card["causes"][0][name] for name in ("name", "rank", "phase")] == ["late-rank", 1, "data"]
    assert card["speedup"] is None and "not known" in result.stdout


def test_a_large_checkpoint_of_an_earlier_training_stays(script: Path) -> None:
    """Large files are linked into the copy in which the script runs."""
    saving = SCRIPT.replace("optimizer.step()\n", "optimizer.step()\n        torch.save(1, 'model.pt')\n")
    (script / "train.py").write_text(saving)
    (script / "model.pt").write_bytes(bytes(2**21))
    done = why(script, "--no-single", "--html", "", "train.py")
    assert done.returncode == 0, done.stderr
    assert (script / "model.pt").read_bytes() == bytes(2**21)


def test_a_script_that_fails_is_shown_with_its_last_lines(script: Path) -> None:
    result = why(script, "train.py", "--steps", "16", "--", "--no-such-option")
    assert result.returncode == 1
    assert "ended with status 1 on 2 processes" in result.stderr and "unrecognized arguments" in result.stderr


def test_too_few_steps_are_an_error(script: Path) -> None:
    (script / "train.py").write_text(SCRIPT.replace("range(4)", "range(0)"))
    result = why(script, "train.py", "--steps", "16")
    assert result.returncode == 1 and "0 of 0 steps can be compared" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["absent.py"], "there is no file absent.py"),
        (["train.py", "-n", "1"], "at least 2 processes"),
        (["train.py", "--steps", "5"], "at least 12"),
        (["train.py", "--project", "elsewhere"], "is not in it"),
    ],
)
def test_wrong_usage_is_said_in_one_line(script: Path, arguments: list[str], words: str) -> None:
    result = why(script, *arguments)
    assert result.returncode == 2 and words in result.stderr and len(result.stderr.splitlines()) == 1


SHARDED = SCRIPT.replace(
    "model = DistributedDataParallel(Model()) if world > 1 else Model()",
    "from torch.distributed.fsdp import fully_shard\nmodel = fully_shard(Model()) if world > 1 else Model()",
)


@pytest.mark.skipif(not hasattr(torch.distributed.fsdp, "fully_shard"), reason="this torch has no fully_shard")
def test_the_communication_of_a_sharded_model_is_seen(script: Path) -> None:
    (script / "train.py").write_text(SHARDED)
    result = why(script, "train.py", "--steps", "16", "--no-single", "--json", "card.json", "--", "--slow", "data")
    assert result.returncode == 0, result.stderr
    card = json.loads((script / "card.json").read_text())
    assert [card["causes"][0][name] for name in ("name", "rank", "phase")] == ["late-rank", 1, "data"]
    assert next(row["seconds"] for row in card["waterfall"] if row["name"] == "communication") > 0
