"""Schedules whose steps are counted from samples, and the rates of other libraries' optimizers."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from convert.conversion import add_runtime, converted
from verify.projects.launch import Launcher

from retrofit.cli import main
from retrofit.convert.plan import plan_conversion
from retrofit.training import read_project

HEAD = """\
import argparse
import math

import timm
import torch
import transformers
from timm.optim import create_optimizer_v2
from torch import nn, optim
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader, TensorDataset
from transformers import get_linear_schedule_with_warmup

parser = argparse.ArgumentParser()
parser.add_argument("--batch_size", type=int, default=4)
parser.add_argument("--samples", type=int, default=48)
args = parser.parse_args()
EPOCHS, BATCH = 3, args.batch_size
frame = list(range(48))
torch.manual_seed(0)
loader = DataLoader(TensorDataset(torch.randn(48, 3)), BATCH, shuffle=True)
model = nn.Linear(3, 1)
"""
TRAIN = """\
for epoch in range(EPOCHS):
    for (x,) in loader:
        optimizer.zero_grad()
        model(x).pow(2).mean().backward()
        optimizer.step()
        scheduler.step()
"""
SGD = "optimizer = optim.SGD(model.parameters(), lr=0.1)\n"


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (
            "total = int(len(frame) / BATCH * EPOCHS)\nscheduler = lr_scheduler.OneCycleLR(optimizer, 0.1, total)",
            "total = int(len(frame) / rd.data.samples_per_step(BATCH) * EPOCHS)",
        ),
        (
            "total = len(frame) // args.batch_size * EPOCHS\n"
            "scheduler = get_linear_schedule_with_warmup(optimizer, int(0.1 * total), total)",
            "total = len(frame) // rd.data.samples_per_step(args.batch_size) * EPOCHS",
        ),
        (
            "steps = math.ceil(args.samples / float(BATCH * 2))\n"
            "scheduler = lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS * steps)",
            "steps = math.ceil(args.samples / float(rd.data.samples_per_step(BATCH) * 2))",
        ),
        (
            "scheduler = lr_scheduler.StepLR(optimizer, step_size=48 // BATCH)",
            "scheduler = lr_scheduler.StepLR(optimizer, step_size=48 // rd.data.samples_per_step(BATCH))",
        ),
        (
            "def decay(step):\n    return max(0.0, 1 - step / (EPOCHS * len(frame) / BATCH))\n"
            "scheduler = lr_scheduler.LambdaLR(optimizer, decay)",
            "return max(0.0, 1 - step / (EPOCHS * len(frame) / rd.data.samples_per_step(BATCH)))",
        ),
        (
            "warm = args.samples // BATCH\n"
            "scheduler = lr_scheduler.LambdaLR(optimizer, lr_lambda=lambda step: min(1.0, step / warm))",
            "warm = args.samples // rd.data.samples_per_step(BATCH)",
        ),
    ],
)
def test_steps_counted_from_samples_are_those_of_all_processes(lines: str, expected: str, tmp_path: Path) -> None:
    found = converted(tmp_path, HEAD + SGD + lines + "\n" + TRAIN)
    assert expected in found and sum(line.count("samples_per_step") for line in found) == 1


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("transformers.AdamW(model.parameters(), lr=3e-5)", "lr=rd.scaled_lr(3e-5))"),
        ("transformers.optimization.Adafactor(model.parameters(), lr=1e-3)", "lr=rd.scaled_lr(1e-3))"),
        ("timm.optim.Lamb(model.parameters(), lr=args.samples)", "lr=rd.scaled_lr(args.samples))"),
        ("create_optimizer_v2(model.parameters(), opt='adamw', lr=5e-4)", "opt='adamw', lr=rd.scaled_lr(5e-4))"),
        (
            "transformers.AdamW(model.parameters())",
            "rd.learning_rate.scale_optimizer(transformers.AdamW(model.parameters()))",
        ),
    ],
)
def test_learning_rates_of_other_libraries_follow_the_batch(line: str, expected: str, tmp_path: Path) -> None:
    train = TRAIN.replace("        scheduler.step()\n", "")
    found = converted(tmp_path, f"{HEAD}optimizer = {line}\n{train}")
    (made,) = (text for text in found if text.startswith("optimizer = "))
    assert made.endswith(expected)


def test_the_final_learning_rate_is_that_of_one_process(tmp_path: Path, launcher: Launcher) -> None:
    lines = "total = int(len(frame) / BATCH * EPOCHS)\nscheduler = lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total)\n"
    script = HEAD + SGD + lines + TRAIN + "print(optimizer.param_groups[0]['lr'])\n"
    script = "".join(f"{line}\n" for line in script.splitlines() if "timm" not in line and "transformers" not in line)
    folder = tmp_path / "changed"
    folder.mkdir()
    (tmp_path / "train.py").write_text(script)
    shutil.copy(tmp_path / "train.py", folder)
    (file,) = plan_conversion(read_project(folder / "train.py")).files
    file.path.write_text(file.text)
    add_runtime(folder)
    alone = float(launcher.run(tmp_path, "train.py", [])["outputs"][0].split()[-1])
    for batch, factor in (("global", 1), ("per_gpu", 2)):
        run = launcher.run(folder, "train.py", [], world_size=2, RETROFIT_BATCH=batch)
        assert set(run["statuses"]) == {0}, run["outputs"]
        assert float(run["outputs"][0].split()[-1]) == pytest.approx(factor * alone)


def test_the_plan_says_which_rule_a_rate_follows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train = TRAIN.replace("        scheduler.step()\n", "")
    summed = train.replace(".mean()", ".sum()")
    lines = []
    for number, text in enumerate((SGD + train, SGD.replace("SGD", "AdamW") + train, SGD + summed)):
        path = tmp_path / f"{number}.py"
        path.write_text(HEAD + text)
        assert main(["convert", str(path)]) == 0
        lines.append([line for line in capsys.readouterr().err.splitlines() if "the learning rate" in line])
    assert lines[0] == []
    assert len(lines[1]) == 1 and "AdamW: " in lines[1][0] and "RETROFIT_LR_SCALE=sqrt" in lines[1][0]
    assert len(lines[2]) == 1 and "the learning rate stays: the loss is a sum" in lines[2][0]
