"""Schedules that count batches by a number of their own are listed by line; those that follow the data are not."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import conversion

from retrofit.cli import main
from retrofit.training.steps.counted.step_schedules import step_schedules

HEAD = """\
import torch
from torch import nn, optim
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader, TensorDataset

EPOCHS, BATCH, WARM = 3, 4, 100
dataset = TensorDataset(torch.randn(48, 3))
loader = DataLoader(dataset, BATCH, shuffle=True)
model = nn.Linear(3, 1)
optimizer = optim.SGD(model.parameters(), lr=0.1)


def set_rate(rate):
    for group in optimizer.param_groups:
        group["lr"] = rate


"""
LOOP = """\
step = 0
for epoch in range(EPOCHS):
    for number, (x,) in enumerate(loader):
        step += 1
        optimizer.zero_grad()
        model(x).pow(2).mean().backward()
        optimizer.step()
        {each}
    {last}
"""


def script(made: str, each: str, last: str) -> str:
    return f"{HEAD}{made}\n{LOOP.format(each=each, last=last)}"


@pytest.mark.parametrize(
    ("made", "each"),
    [
        ("scheduler = lr_scheduler.StepLR(optimizer, step_size=1000, gamma=0.5)", "scheduler.step()"),
        ("scheduler = lr_scheduler.ExponentialLR(optimizer, 0.9999)", "scheduler.step()"),
        ("scheduler = lr_scheduler.CosineAnnealingLR(optimizer, T_max=EPOCHS)", "scheduler.step()"),
        ("scheduler = lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, step / WARM))", "scheduler.step()"),
        ("milestones = [200, 400]\nscheduler = lr_scheduler.MultiStepLR(optimizer, milestones)", "scheduler.step()"),
        ("", "set_rate(0.1 * 0.5 ** (step // 1000))"),
        ("", "if step % 1000 == 0:\n            set_rate(0.01)"),
    ],
)
def test_a_schedule_that_counts_batches_is_listed(made: str, each: str, tmp_path: Path) -> None:
    text = script(made, each, "pass")
    (listed,) = step_schedules(conversion(tmp_path, text).project)
    expected = next(
        n for n, line in enumerate(text.splitlines(), 1) if (made or 'group["lr"] =').splitlines()[-1] in line
    )
    assert listed.place.line == expected and "RETROFIT_BATCH=global" in listed.text


@pytest.mark.parametrize(
    ("made", "each", "last"),
    [
        ("scheduler = lr_scheduler.StepLR(optimizer, step_size=2)", "pass", "scheduler.step()"),
        ("scheduler = lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS * len(loader))", "scheduler.step()", "pass"),
        ("scheduler = lr_scheduler.StepLR(optimizer, len(dataset) // BATCH)", "scheduler.step()", "pass"),
        ("scheduler = lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 2)",
         "scheduler.step(epoch + number / len(loader))", "pass"),
        ("", "set_rate(0.1 * (1 - step / (EPOCHS * len(loader))))", "pass"),
        ("", "pass", "set_rate(0.1 * 0.5 ** epoch)"),
        ("", "if epoch < 2:\n            set_rate(0.1)", "pass"),
    ],
)  # fmt: skip
def test_a_schedule_by_data_or_epochs_is_not_listed(made: str, each: str, last: str, tmp_path: Path) -> None:
    assert step_schedules(conversion(tmp_path, script(made, each, last)).project) == []


WEIGHED = "model(x).pow(2).mean() + WEIGHT * model(x).abs().mean()"


@pytest.mark.parametrize("weight", ["min(1.0, step / WARM)", "weight_at(step)", "annealed"])
def test_a_weight_of_a_loss_that_counts_batches_is_listed(weight: str, tmp_path: Path) -> None:
    made = "def weight_at(step):\n    return 1 / (1 + 2 ** (WARM - step))\n"
    text = script(made, "pass", "pass").replace("model(x).pow(2).mean()", f"({WEIGHED.replace('WEIGHT', weight)})")
    text = text.replace("step += 1", "step += 1\n        annealed = min(1, step * 0.01)")
    (listed,) = step_schedules(conversion(tmp_path, text).project)
    assert listed.is_weight and listed.schedule == weight
    assert "the weight of a loss counts batches" in listed.text


@pytest.mark.parametrize("weight", ["0.1", "min(1.0, epoch / 2)", "step / (EPOCHS * len(loader))"])
def test_a_weight_of_a_loss_by_data_or_epochs_is_not_listed(weight: str, tmp_path: Path) -> None:
    text = script("", "pass", "pass").replace("model(x).pow(2).mean()", f"({WEIGHED.replace('WEIGHT', weight)})")
    assert step_schedules(conversion(tmp_path, text).project) == []


def test_the_plan_and_the_page_name_the_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = "scheduler = lr_scheduler.StepLR(optimizer, step_size=1000)"
    (tmp_path / "train.py").write_text(script(made, "scheduler.step()", "pass"))
    assert main(["convert", str(tmp_path / "train.py"), "--write"]) == 0
    assert f"the schedule counts batches ({made.partition(' = ')[2]})" in capsys.readouterr().err
    lines = (tmp_path / "train.py").read_text().splitlines()
    page = (tmp_path / "MULTI_GPU.md").read_text()
    assert f"`train.py:{lines.index(made) + 1}`: `{made.partition(' = ')[2]}`" in page
