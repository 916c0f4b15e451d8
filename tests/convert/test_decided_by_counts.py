"""Losses that are computed in one way or another by a count of the batch: all processes decide by the count of all."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import conversion
from convert.training_runs import trains_as_one
from verify.projects.launch import Launcher

SCRIPT = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
targets = (torch.rand(22, 3) > 0.7).float()
targets[4:6] = 0  # of one process alone
targets[12:16] = 0  # of the whole batch
loader = DataLoader(TensorDataset(torch.rand(22, 6), targets), batch_size=4)
model = nn.Sequential(nn.Linear(6, 3), nn.Sigmoid())
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)


def matched(target):
    places, others = [], []
    for limit in (0, 1):
        found = target >= 1 - limit * 0.5
        row, column = found.nonzero().T
        places.append((row.clamp(0, 99), column))
        others.append(limit)
    return places, others


def criterion(output, target):
    error = (output - target) ** 2
BODY

for epoch in range(2):
    for x, y in loader:
        loss = criterion(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print("shown", loss.item())
"""
COUNT, SHARE = "rd.loss.batch_count({})", "rd.loss.rank_share(rd.loss.batch_count({}))"
N = COUNT.format("n")
# The body of the criterion, and the test that all processes make then.
TOGETHER = {
    "return before": (
        "n = target.sum()\nif n == 0:\n    return output.sum() * 0\nreturn (error * target).sum() / n", f"if {N} == 0:",
    ),
    "one expression": (
        "n = (target > 0).sum()\nreturn (error * target).sum() / n if n > 0 else 0 * error.sum()", f" if {N} > 0 else ",
    ),
    "a term": (
        "n = target.sum().item()\nloss = error.mean()\nif n >= 1:\n    loss = loss + (error * target).sum() / n\n"
        "return loss", f"if {N} >= 1:",
    ),
    "a count of the chosen": (
        "chosen = error[target > 0]\nif len(chosen) != 0:\n    return chosen.sum() / len(chosen)\nreturn error.mean()",
        f"if {COUNT.format('len(chosen)')} != 0:",
    ),
    "any": (
        "mask = target > 0\nif mask.any() and epoch >= 0:\n    return (error * mask).sum() / mask.sum()\n"
        "return error.mean()", f"if {COUNT.format('mask.any()')} and epoch >= 0:",
    ),
    "none": (
        "n = (target > 0).sum()\nif not n:\n    return output.sum() * 0\nreturn (error * target).sum() / n",
        f"if not {N}:",
    ),
    "of a list that a function returns": (
        "places, others = matched(target)\nloss = error.mean()\nfor part, _ in enumerate((output, target)):\n"
        "    row, column = places[part]\n    n = row.shape[0]\n    if n:\n"
        "        loss = loss + error[row, column].mean()\nreturn loss + 0 * len(others)",
        f"if {N}:",
    ),
    "Dice": (
        "if torch.sum(target) < 1:\n    return torch.sum(output) * 0\noverlap = torch.sum(target * output)\n"
        "return 1 - 2 * overlap / (torch.sum(target) + torch.sum(output) + 1)",
        f"if {COUNT.format('torch.sum(target)')} < 1:",
    ),
}  # fmt: skip
LISTED = {
    "largest": "if error.max() > 1:\n    return error.mean()\nreturn (error * target).sum() / target.sum()",
    "two counts": "n = target.sum()\nif n and error.sum():\n    return (error * target).sum() / n\nreturn error.mean()",
}


def script_of(body: str) -> str:
    return SCRIPT.replace("BODY", "".join(f"    {line}\n" for line in body.splitlines()))


@pytest.mark.parametrize("form", TOGETHER)
def test_all_processes_decide_together(form: str, tmp_path: Path) -> None:
    body, test = TOGETHER[form]
    result = conversion(tmp_path, script_of(body))
    assert not result.refusals and not result.listed
    assert result.files[0].text.count(test) == 1
    assert all(finding.edits for finding in result.findings if finding.code in ("RF302", "RF309"))


@pytest.mark.parametrize("form", ["return before", "of a list that a function returns", "Dice"])
def test_two_processes_train_as_one(form: str, tmp_path: Path, launcher: Launcher) -> None:
    trains_as_one(tmp_path, script_of(TOGETHER[form][0]), launcher, rel=1e-5)


@pytest.mark.parametrize("form", LISTED)
def test_other_tests_are_left_to_the_user(form: str, tmp_path: Path) -> None:
    result = conversion(tmp_path, script_of(LISTED[form]))
    left = [finding for finding in result.findings if finding.code == "RF302" and not finding.edits]
    assert not result.refusals and left
