"""`retrofit plan` on real processes: its profile, the link, its files, the run afterwards, and its errors."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.usefixtures("forked_python")

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = """\
import argparse
import time

import torch
from torch.utils.data import DataLoader, Dataset

parser = argparse.ArgumentParser()
parser.add_argument("--batch_size", type=int, default=8)
parser.add_argument("--workers", type=int, default=0)
parser.add_argument("--steps", type=int, default=400)
args = parser.parse_args()


class Samples(Dataset):
    def __len__(self):
        return args.batch_size * args.steps

    def __getitem__(self, index):
        if index % args.batch_size == 0:
            time.sleep(0.02)
        return torch.full((8,), float(index % 7)), torch.tensor(float(index % 7))


class Slow(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        time.sleep(0.03)
        return x.clone()

    @staticmethod
    def backward(context, gradient):
        time.sleep(0.05)
        return gradient


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = torch.nn.Linear(8, 16), torch.nn.Linear(16, 1)

    def forward(self, x):
        return self.last(Slow.apply(self.first(x))).flatten()


torch.manual_seed(0)
model = Model()
optimizer = torch.optim.AdamW(model.parameters(), 0.01)
for x, y in DataLoader(Samples(), args.batch_size, num_workers=args.workers):
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()
"""


def planned(folder: Path, *options: str, arguments: tuple[str, ...] = ()) -> tuple[subprocess.CompletedProcess, dict]:
    """Run `retrofit plan` on the script, and return what it said and its card."""
    (folder / "train.py").write_text(SCRIPT) if not (folder / "train.py").exists() else None
    command = [sys.executable, "-m", "retrofit", "plan", "--json", "card.json", *options, "train.py", "--", *arguments]
    environ = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "COLUMNS": "140",
    }
    environ["RETROFIT_PLAN_HISTORY"] = str(folder.parent / "history.json")
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=300)
    card = folder / "card.json"
    return done, json.loads(card.read_text()) if card.is_file() else {}


def test_the_parts_of_a_step_are_measured_and_several_gpus_predicted(tmp_path: Path) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    done, card = planned(folder, "--gpus", "2,16", "--link", "25gbe", "--price", "3", "--gpu-memory", "1GiB")
    assert done.returncode == 0, done.stderr
    one = card["one_process"]
    assert one["data_s"] == pytest.approx(0.02, abs=0.01)
    assert one["forward_s"] == pytest.approx(0.03, abs=0.01)
    assert one["backward_s"] == pytest.approx(0.05, abs=0.01)
    assert one["gradient_bytes"] == 4 * (8 * 16 + 16 + 16 + 1)
    assert one["optimizer_bytes"] == 2 * one["gradient_bytes"]
    assert one["batches_per_epoch"] == 400
    assert one["activation_bytes"] > 0
    found = {(row["gpus"], row["strategy"]): row for row in card["predictions"]}
    assert {gpus for gpus, _ in found} == {2, 16}
    ddp = found[2, "ddp"]
    assert 0.07 < ddp["low_s"] < ddp["step_s"] < ddp["high_s"] < 0.2
    assert 1.4 < ddp["speedup"] < 2.4
    assert ddp["fits"]
    assert ddp["largest_batch"] > 8
    assert ddp["epoch_cost"] == pytest.approx(ddp["epoch_s"] / 3600 * 2 * 3)
    assert card["recommended"]["gpus"] == 16
    assert "--nnodes=2" in card["recommended"]["command"]
    assert "16 GPUs are 2 machines of 8" in card["notes"][0]
    assert (folder / "plan.png").read_bytes().startswith(b"\x89PNG")
    for text in ("Amdahl's law", "recommended:", "by the guides' rule DDP", "retrofit convert train.py --write"):
        assert text in done.stdout
    assert sorted(path.name for path in folder.iterdir()) == ["card.json", "plan.png", "train.py"]


def test_the_batch_of_a_step_can_stay(tmp_path: Path) -> None:
    options = ("--gpus", "2,4", "--link", "nvlink", "--batch-flag", "batch_size", "--plot", "")
    done, card = planned(tmp_path, *options, arguments=("--batch_size", "8"))
    assert done.returncode == 0, done.stderr
    # Sleeps do not depend on the batch: half of it takes as long, and nothing is gained.
    ddp = [row for row in card["predictions"] if row["strategy"] == "ddp"]
    assert [row["speedup"] for row in ddp] == pytest.approx([1.0, 1.0], abs=0.25)
    done, _ = planned(tmp_path, *options, arguments=("--batch_size", "7"))
    assert done.returncode == 2
    assert "cannot be shared by 2 processes" in done.stderr


def test_waiting_for_workers_is_predicted(tmp_path: Path) -> None:
    done, card = planned(
        tmp_path, "--gpus", "2", "--link", "nvlink", "--plot", "", arguments=("--workers", "1", "--batch_size", "8")
    )
    assert done.returncode == 0, done.stderr
    waits = card["data_wait_s"]
    assert waits["0"] == pytest.approx(0.02, abs=0.01)  # without workers the step makes its batch
    assert waits["1"] < 0.01


@pytest.mark.slow
def test_the_recommendation_is_run_and_corrects_the_next_plan(tmp_path: Path) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "train.py").write_text(SCRIPT)
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    convert = [sys.executable, "-m", "retrofit", "convert", "train.py", "--write"]
    subprocess.run(convert, cwd=folder, env=environ, check=True, capture_output=True)
    done, card = planned(folder, "--gpus", "2", "--after", "--plot", "", "--steps", "12")
    assert done.returncode == 0, done.stderr
    assert card["links"]["2"]["name"] == "measured: 2 ranks, gloo"
    line = next(line for line in done.stdout.splitlines() if line.startswith("predicted "))
    assert "measured " in line
    kept = json.loads((tmp_path / "history.json").read_text())
    assert [(entry["strategy"], entry["gpus"]) for entry in kept] == [(card["recommended"]["strategy"], 2)]
    again, card = planned(folder, "--gpus", "2", "--plot", "", "--steps", "8")
    assert list(card["corrected"]["2"]) == [kept[0]["strategy"]]
    assert "corrected by earlier runs of `plan --after`" in again.stdout


def test_a_script_that_is_not_distributed_is_not_taken_for_the_recommendation(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    done, _ = planned(tmp_path, "--gpus", "2", "--link", "10gbe", "--after", "--plot", "", "--steps", "12")
    assert done.returncode == 1
    assert "2 processes that did not communicate" in done.stderr
    assert not (tmp_path.parent / "history.json").exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--gpus", "1"), "numbers of GPUs from 2 on"),
        (("--gpu-memory", "much"), "a size such as 24GiB"),
        (("--link", "string"), "--link string: not measured, nvlink"),
        (("--steps", "3"), "--steps 3: at least 8"),
        (("--per-machine", "0"), "--per-machine 0: at least 1"),
        (("--price", "-1"), "--price -1.0: not below 0"),
    ],
)
def test_wrong_usage_is_named(tmp_path: Path, options: tuple[str, ...], said: str) -> None:
    done, _ = planned(tmp_path, *options)
    assert done.returncode == 2
    assert said in done.stderr


def test_a_script_that_fails_or_ends_early_is_named(tmp_path: Path) -> None:
    done, _ = planned(tmp_path, "--link", "nvlink", arguments=("--steps", "6"))
    assert done.returncode == 1
    assert "steps without an evaluation were measured, and 5 are needed" in done.stderr
    (tmp_path / "train.py").write_text("raise SystemExit('no data here')\n")
    done, _ = planned(tmp_path, "--link", "nvlink")
    assert done.returncode == 1
    assert "ended with status 1 on one process:\n  no data here" in done.stderr


SAVING = """\
import torch

model = torch.nn.Linear(700, 700)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(40):
    optimizer.zero_grad()
    model(torch.randn(4, 700)).pow(2).mean().backward()
    optimizer.step()
    torch.save(model.state_dict(), "model.pt")
"""


def test_a_large_checkpoint_of_an_earlier_training_stays(tmp_path: Path) -> None:
    """Large files are linked into the copy in which the script runs."""
    (tmp_path / "train.py").write_text(SAVING)
    (tmp_path / "model.pt").write_bytes(bytes(2**21))
    done, _ = planned(tmp_path, "--gpus", "2", "--link", "10gbe", "--plot", "", "--steps", "8")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "model.pt").read_bytes() == bytes(2**21)


TWO_OPTIMIZERS = """\
import torch

torch.manual_seed(0)
one, other = torch.nn.Linear(64, 64), torch.nn.Linear(64, 8)
optimizers = [torch.optim.SGD(model.parameters(), 0.01) for model in (one, other)]
for step in range(60):
    x = torch.randn(16, 64)
    for model, optimizer in zip((one, other), optimizers):
        optimizer.zero_grad()
        model(x).pow(2).mean().backward()
        optimizer.step()
"""


def test_optimizers_that_take_turns_are_counted_together(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TWO_OPTIMIZERS)
    done, card = planned(tmp_path, "--gpus", "2", "--link", "10gbe", "--plot", "")
    assert done.returncode == 0, done.stderr
    one = card["one_process"]
    assert one["gradient_bytes"] == 4 * (64 * 64 + 64 + 64 * 8 + 8)
    assert one["activation_bytes"] > 0
    assert one["batches_per_epoch"] is None


@pytest.mark.slow
def test_a_compiled_model_is_planned_without_its_activations(tmp_path: Path) -> None:
    script = SCRIPT.replace("model = Model()", 'model = torch.compile(Model(), backend="aot_eager")')
    (tmp_path / "train.py").write_text(script)
    done, card = planned(tmp_path, "--gpus", "2", "--link", "10gbe", "--plot", "", "--steps", "8")
    assert done.returncode == 0, done.stderr
    assert card["one_process"]["activation_bytes"] == 0
    assert "activations are not counted" in done.stdout
