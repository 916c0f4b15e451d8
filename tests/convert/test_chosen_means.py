"""The mean of what a mask leaves is that of all processes, also where one of them has nothing left."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import conversion
from convert.training_runs import trains_as_one
from verify.projects.launch import Launcher

SCRIPT = """\
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.rand(22, 6, 4).double()
mask = torch.rand(22, 6) > torch.linspace(0.2, 0.9, 22)[:, None]
mask[4:6] = False  # of one process alone
mask[1::4, 0], mask[2::4, 0] = True, False
loader = DataLoader(TensorDataset(x, x.cumsum(1) * 0.3, mask), batch_size=4)
model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 4)).double()
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)


def criterion(output, target, mask):
    error = (output - target) ** 2
BODY

for epoch in range(2):
    total = 0
    for step, (x, y, mask) in enumerate(loader):
        loss = criterion(model(x), y, mask) / 2
        loss.backward()
        if step % 2:
            optimizer.step()
            optimizer.zero_grad()
        total += loss.item()
        print("shown", loss.item())
    print("shown", total / len(loader), model[0].weight.sum().item())
"""
CHOSEN = "rd.loss.chosen_mean"
FORMS = {
    "return ((output - target)[mask] ** 2).mean()": f"return {CHOSEN}((output - target)[mask] ** 2)",
    "return error[mask].mean(dim=0).sum()": f"return {CHOSEN}(error[mask], dim=0).sum()",
    "return error[mask] \\\n        .mean()": f"return {CHOSEN}(error[mask])",
    "return torch.mean(error[mask], 0).sum()": f"return {CHOSEN}(error[mask], 0).sum()",
    "return (error.mean(-1)[mask]).mean()": f"return {CHOSEN}(error.mean(-1)[mask])",
    "return (error.mean(-1)[~mask]).mean(0)": f"return {CHOSEN}((error.mean(-1)[~mask]), 0)",
    "return error[mask & (target > 0).all(-1)].mean()": f"return {CHOSEN}(error[mask & (target > 0).all(-1)])",
    "return torch.masked_select(error, mask[..., None]).mean()":
        f"return {CHOSEN}(torch.masked_select(error, mask[..., None]))",
    "at = mask.nonzero(as_tuple=True)\nreturn error[at].mean() if mask.any() else error.sum() * 0":
        f"return {CHOSEN}(error[at]) if rd.loss.batch_count(mask.any()) else error.sum() * 0",
    "if not mask.any():\n    return error.mean()\nreturn error.mean() + error[mask].mean()":
        f"if not rd.loss.batch_count(mask.any()):\n        return error.mean()\n"
        f"    return error.mean() + {CHOSEN}(error[mask])",
    "seen = [mask, ~mask]\nreturn sum(error[one].mean() for one in seen if one.any()) / 2":
        f"return sum({CHOSEN}(error[one]) for one in seen if rd.loss.batch_count(one.any())) / 2",
    "parts = [error[mask == seen].mean() for seen in (True, False)]\nreturn torch.stack(parts).mean()":
        f"parts = [{CHOSEN}(error[mask == seen]) for seen in (True, False)]\n    return torch.stack(parts).mean()",
    "return error[mask].mean().sqrt()": f"return rd.loss.batch_mean({CHOSEN}(error[mask])).sqrt()",
}  # fmt: skip
LISTED = {
    "nanmean": "return error.mean(-1).masked_fill(mask, float('nan')).nanmean()",
    "by a maximum": "if error.max() > 1:\n    return error[mask].mean()\nreturn error.mean()",
    "another type": "return error[mask].mean(dtype=torch.float32)",
}


def script_of(body: str) -> str:
    return SCRIPT.replace("BODY", "".join(f"    {line}\n" for line in body.splitlines()))


@pytest.mark.parametrize("body", FORMS)
def test_a_function_of_the_runtime_takes_the_mean(body: str, tmp_path: Path) -> None:
    result = conversion(tmp_path, script_of(body))
    assert not result.refusals and not result.listed
    assert FORMS[body] in result.files[0].text


def test_it_is_the_mean_of_one_process(tmp_path: Path, launcher: Launcher) -> None:
    bodies = [*FORMS][:3] + [*FORMS][6:]
    functions = "".join(
        f"def criterion_{number}(output, target, mask):\n    error = (output - target) ** 2\n"
        + "".join(f"    {line}\n" for line in body.splitlines())
        for number, body in enumerate(bodies)
    )
    terms = " + ".join(f"criterion_{number}(output, target, mask)" for number in range(len(bodies)))
    script = script_of(f"return {terms}").replace("def criterion(", f"{functions}\n\ndef criterion(")
    trains_as_one(tmp_path, script, launcher, world_sizes=(1, 2))


OUTPUTS = "return F.mse_loss(output[~mask], torch.zeros_like(output[~mask]))"


def test_outputs_that_a_mask_chooses_are_counted(tmp_path: Path) -> None:
    text = conversion(tmp_path, script_of(OUTPUTS)).files[0].text
    assert "return rd.loss.distribute_criterion(F.mse_loss)(output[~mask]," in text


@pytest.mark.parametrize("form", LISTED)
def test_other_means_are_left_to_the_user(form: str, tmp_path: Path) -> None:
    result = conversion(tmp_path, script_of(LISTED[form]))
    left = [finding for finding in result.findings if finding.code == "RF302" and not finding.edits]
    assert not result.refusals and left and f"{CHOSEN}(error" not in result.files[0].text


def test_a_state_that_gets_the_mean_is_left_to_the_user(tmp_path: Path) -> None:
    script = script_of("return error.mean() + (output - center).pow(2).mean()").replace(
        "        total += loss.item()\n",
        "        total += loss.item()\n        with torch.no_grad():\n"
        "            center = 0.9 * center + 0.1 * model(x)[mask].mean(0)\n",
    )
    result = conversion(tmp_path, script.replace("optimizer =", "center = torch.zeros(4).double()\noptimizer ="))
    left = [finding.code for finding in result.findings if finding.code in ("RF302", "RF309") and not finding.edits]
    assert result.refusals or left
    assert "model(x)[mask].mean(0)" in result.files[0].text if result.files else True
