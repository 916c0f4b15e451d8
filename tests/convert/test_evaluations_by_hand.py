"""An evaluation without a loader, which every rank runs and draws for, and by which the training decides."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import converted
from convert.training_runs import trains_as_one
from verify.projects.launch import Launcher

SCRIPT = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(24, 6, dtype=torch.float64)
held_out = torch.randn(16, 6, dtype=torch.float64)
loader = DataLoader(TensorDataset(x), batch_size=6)
model = nn.Sequential(nn.Linear(6, 8), nn.Dropout({rate}), nn.Linear(8, 1)).double()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=1)


def noise(data):
    return {noise}


def score(data):
    {mode}
    with torch.no_grad():
        parts = [model(part + noise(part)).square().mean().item() for part in data.split(4)]
    return sum(parts) / len(parts)


class Early:
    def __init__(self):
        self.best, self.left = 1e9, 3

    def is_over(self, value):
        self.left = 3 if value < self.best else self.left - 1
        self.best = min(value, self.best)
        return self.left == 0


early = Early()
best = 1e9
for epoch in range(12):
    model.train()
    for (x,) in loader:
        optimizer.zero_grad()
        (model(x) - 1).pow(2).mean().backward()
        optimizer.step()
    {mode}
    {body}
print("shown", epoch)
"""
TOGETHER = "rd.data.draw_together(score, held_out)"
DRAWN = {
    "an end": ("value = score(held_out)\n    if early.is_over(value): break", f"value = {TOGETHER}"),
    "an end by a flag": (
        "value = score(held_out)\n    is_over = early.is_over(value)\n    if is_over: break", f"value = {TOGETHER}",
    ),
    "an end by the call": ("if score(held_out) > 2:\n        break", f"if {TOGETHER} > 2:"),
    "a learning rate": ("value = score(held_out)\n    plateau.step(value)", f"value = {TOGETHER}"),
    "a learning rate by the call": ("plateau.step(score(held_out))", f"plateau.step({TOGETHER})"),
    "what is kept": (
        "value = score(held_out)\n    if value < best: best = value; torch.save(model.state_dict(), 'best.pt')",
        f"value = {TOGETHER}",
    ),
    "in the training's function": (
        "total = 0\n    for part in held_out.split(4): total += model(part + noise(part)).sum().item()\n"
        "    if total > 1e9: break",
        "if rd.collectives.broadcast_object(bool(total > 1e9)): break",
    ),
    "a learning rate in the training's function": (
        "total = 0\n    for part in held_out.split(4): total += model(part + noise(part)).sum().item()\n"
        "    plateau.step(total)",
        "plateau.step(rd.collectives.broadcast_object(total))",
    ),
}  # fmt: skip
RANDOM, FIXED, OFF = "torch.randn_like(data)", "0 * data", "model.eval()"


def lines(folder: Path, body: str, noise: str = RANDOM, mode: str = OFF, rate: float = 0.0) -> list[str]:
    return converted(folder, SCRIPT.format(body=body, noise=noise, mode=mode, rate=rate))


@pytest.mark.parametrize("form", DRAWN)
def test_all_ranks_decide_by_the_same_figures(form: str, tmp_path: Path) -> None:
    body, changed = DRAWN[form]
    assert changed in lines(tmp_path, body)


@pytest.mark.parametrize("form", DRAWN)
def test_an_evaluation_that_draws_nothing_stays(form: str, tmp_path: Path) -> None:
    body, changed = DRAWN[form]
    assert changed not in lines(tmp_path, body, noise=FIXED)


@pytest.mark.parametrize(("mode", "is_drawn"), [(OFF, False), ("pass", True)])
def test_dropout_draws_where_it_is_not_switched_off(mode: str, is_drawn: bool, tmp_path: Path) -> None:
    body, changed = DRAWN["an end"]
    assert (changed in lines(tmp_path, body, noise=FIXED, mode=mode, rate=0.5)) is is_drawn


def test_an_evaluation_by_which_nothing_is_decided_stays(tmp_path: Path) -> None:
    assert "value = score(held_out); print(value)" in lines(tmp_path, "value = score(held_out); print(value)")


@pytest.mark.parametrize("form", ["an end", "a learning rate", "in the training's function"])
def test_the_training_ends_on_all_ranks(form: str, tmp_path: Path, launcher: Launcher) -> None:
    script = SCRIPT.format(body=DRAWN[form][0], noise=RANDOM, mode=OFF, rate=0.0)
    trains_as_one(tmp_path, script, launcher, world_sizes=(2, 3))
