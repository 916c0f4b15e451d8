"""Losses of several tasks, of which a sample has some: a mean for each task over the samples that have it."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import add_runtime, converted
from verify.projects.launch import Launcher

from retrofit.convert.plan import plan_conversion
from retrofit.training import read_project

HEAD = """\
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
data = TensorDataset(torch.randn(26, 3).double(), (torch.rand(26, 3) < 0.3).double())


def train(name, loss_of):
    torch.manual_seed(1)
    net = nn.Linear(3, 3).double()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for inputs, known in DataLoader(data, batch_size=6):
        loss = loss_of(net(inputs), inputs, known)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(name, loss.item())


"""
TASKS = {
    "skipped": """\
    for task in range(3):
        mask = known[:, task] > 0
        if mask.sum() == 0:
            continue
        loss = loss + F.mse_loss(out[mask, task], target[mask, task])
""",
    "tested": """\
    for task in range(3):
        mask = known[:, task].bool()
        if mask.any():
            loss = loss + F.l1_loss(out[mask, task], target[mask, task])
""",
    "places": """\
    for task in range(3):
        places = torch.where(known[:, task] > 0)[0]
        if len(places):
            loss = loss + F.mse_loss(out[places, task], target[places, task])
""",
    "errors": """\
    errors = (out - target) ** 2
    for task in range(3):
        mask = known[:, task] > 0
        if mask.sum() > 0:
            loss = loss + errors[mask, task].mean()
""",
}


def script(names: list[str]) -> str:
    functions = [
        f"def {name}(out, target, known):\n    loss = out.sum() * 0\n{TASKS[name]}    return loss\n" for name in names
    ]
    return HEAD + "\n\n".join([*functions, *(f"train('{name}', {name})" for name in names)]) + "\n"


@pytest.mark.parametrize("name", TASKS)
def test_the_samples_of_all_ranks_count(name: str, tmp_path: Path) -> None:
    lines = converted(tmp_path, script([name]))
    assert any("rd.loss.distribute_criterion(F." in line or "rd.loss.chosen_mean(" in line for line in lines)
    assert any(line.startswith("if rd.loss.batch_count(") for line in lines)


@pytest.mark.parametrize("world_size", [1, 2])
def test_the_training_is_that_of_one_process(world_size: int, tmp_path: Path, launcher: Launcher) -> None:
    (tmp_path / "train.py").write_text(script(list(TASKS)))
    (changed,) = plan_conversion(read_project(tmp_path / "train.py")).files
    (tmp_path / "changed.py").write_text(changed.text)
    add_runtime(tmp_path)
    alone = launcher.run(tmp_path, "train.py", [])
    together = launcher.run(tmp_path, "changed.py", [], world_size=world_size, RETROFIT_BATCH="global")
    assert {*alone["statuses"], *together["statuses"]} == {0}, together["outputs"]
    expected, found = (
        [line.split() for line in run["outputs"][0].splitlines() if line.split()[0] in TASKS]
        for run in (alone, together)
    )
    assert [name for name, _ in found] == [name for name, _ in expected]
    assert [float(loss) for _, loss in found] == pytest.approx([float(loss) for _, loss in expected], rel=1e-9)
