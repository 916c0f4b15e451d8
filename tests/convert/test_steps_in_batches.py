"""A step for each entry of a batch of a loader is refused: processes may have different numbers of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import conversion

HEAD = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from tqdm import tqdm

data = TensorDataset(torch.randn(64, 6), torch.randn(64, 1))


def groups(samples):
    samples.sort(key=lambda sample: sample[0][0].item())
    parts = [samples[i : i + 4] for i in range(0, len(samples), 4)]
    return [(torch.stack([a for a, _ in part]), torch.stack([b for _, b in part])) for part in parts]


loader = DataLoader(data, batch_size=16, shuffle=True, collate_fn=groups)
model = nn.Linear(6, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def step():
    optimizer.step()


"""
STEP = """\
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""
REFUSED = {
    "a list of batches": "for batches in loader:\n    for x, y in batches:\n" + STEP,
    "numbered": "for n, batches in enumerate(tqdm(loader)):\n    for m, (x, y) in enumerate(batches):\n" + STEP,
    "bar in a variable": "for n, batches in enumerate(loader):\n    bar = tqdm(batches)\n    for x, y in bar:\n" + STEP,
    "in a function": "for batches in loader:\n    for x, y in batches:\n" + STEP.replace("optimizer.step()", "step()"),
}
CONVERTED = {
    "a step for all": "for batches in loader:\n    optimizer.zero_grad()\n    for x, y in batches:\n"
    "        (nn.functional.mse_loss(model(x), y) / 4).backward()\n    optimizer.step()\n",
    "a number of steps": "for x, y in DataLoader(data, 8):\n    for _ in range(3):\n" + STEP,
    "views": "for views, y in DataLoader(data, 8):\n    for x in (views, -views):\n" + STEP,
}


@pytest.mark.parametrize("loop", REFUSED)
def test_steps_in_a_batch_are_refused(loop: str, tmp_path: Path) -> None:
    (refusal,) = conversion(tmp_path, HEAD + REFUSED[loop]).refusals
    assert refusal.kind == "steps-in-batch" and "each entry of batches" in (refusal.refusal or "")


@pytest.mark.parametrize("loop", CONVERTED)
def test_other_loops_in_a_batch_are_not(loop: str, tmp_path: Path) -> None:
    assert not conversion(tmp_path, HEAD + CONVERTED[loop]).refusals
