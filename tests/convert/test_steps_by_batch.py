"""Steps that a process makes or leaves out by its own batch: the loss decides for all ranks, anything else is refused.

A step that one rank alone makes after `backward()` lets nothing wait: the weights of the ranks become different.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from conversion import conversion, converted

SCRIPT = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

loader = DataLoader(TensorDataset(torch.randn(64, 6), torch.randn(64, 1)), batch_size=16)
model = nn.Linear(6, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
for i, (x, y) in enumerate(loader):
    output = model(x)
    loss = nn.functional.mse_loss(output, y)
    optimizer.zero_grad()
    loss.backward()
STEP
"""
BY_SAMPLES = {
    "errors": "    if (output - y).abs().max() < 9:\n        optimizer.step()",
    "share": "    good = (output > y).float().mean()\n    if good.item() < 0.5:\n        optimizer.step()",
    "clips": (
        "    clips = []\n    for k in range(len(x)):\n        clips.append(x[k, : int(y.abs().max())])\n"
        "    clips = torch.stack(clips)\n    if clips.size(1) < 1:\n        continue\n    optimizer.step()"
    ),
    "left": "    if y.sum() == 0:\n        continue\n    optimizer.step()",
    "else": "    if y.max() < 9:\n        optimizer.step()\n    else:\n        optimizer.zero_grad()",
    "schedule": "    optimizer.step()\n    if output.mean() > 1:\n        scheduler.step()",
}
BY_LOSS = {
    "compared": ("    if loss < 9:\n        optimizer.step()", "    if rd.reduce_loss(loss) < 9:"),
    "finite": (
        "    if torch.isfinite(loss):\n        optimizer.step()",
        "    if torch.isfinite(rd.reduce_loss(loss)):",
    ),
    "left": ("    if loss.isnan():\n        continue\n    optimizer.step()", "    if rd.reduce_loss(loss).isnan():"),
}
BY_ALL = {
    "a window": (
        "    kept = []\n    for k in range(2):\n        kept.append(output[:1])\n"
        "    if len(kept) < 2:\n        continue\n    optimizer.step()"
    ),
    "number": "    if (i + 1) % 2 == 0 or i == len(loader) - 1:\n        optimizer.step()",
    "gradients": "    if nn.utils.clip_grad_norm_(model.parameters(), 1.0) < 9:\n        optimizer.step()",
    "both": "    if y.max() < 9:\n        optimizer.step()\n    else:\n        optimizer.step()",
    "after": "    optimizer.step()\n    if y.max() < 9:\n        continue\n    seen = True",
}


@pytest.mark.parametrize("name", BY_SAMPLES)
def test_a_step_that_samples_decide_on_is_refused(name: str, tmp_path: Path) -> None:
    (refusal,) = conversion(tmp_path, SCRIPT.replace("STEP", BY_SAMPLES[name])).refusals
    assert refusal.kind == "skipped-by-batch"


@pytest.mark.parametrize("name", BY_LOSS)
def test_a_step_that_the_loss_decides_on_is_decided_by_that_of_all(name: str, tmp_path: Path) -> None:
    step, line = BY_LOSS[name]
    assert line.strip() in converted(tmp_path, SCRIPT.replace("STEP", step))


@pytest.mark.parametrize("name", BY_ALL)
def test_a_step_that_all_ranks_make_stays_as_it_is(name: str, tmp_path: Path) -> None:
    lines = converted(tmp_path, SCRIPT.replace("STEP", BY_ALL[name]))
    assert all(line.strip() in lines for line in BY_ALL[name].splitlines())
