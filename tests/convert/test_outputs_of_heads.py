"""A sum over what a model gives: over its heads, where each is compared with the whole batch, or over the samples."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import conversion

SCRIPT = """\
import torch
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset
from library import make

loader = DataLoader(TensorDataset(torch.randn(16, 3), torch.rand(16, 2)), 4)
model = make()
optimizer = optim.SGD(model.parameters(), lr=0.1)
criterion = nn.MSELoss()
for x, y in loader:
    output = model(x)
    loss = 0
    LOOP
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
OF_HEADS = {
    "a loop": "for out in output:\n        loss += criterion(out, y)",
    "with a test": "if type(output) == list:\n        for out in output:\n            loss += criterion(out, y)",
    "moved": "y = y.to(x.device)\n    for out in output:\n        loss = loss + criterion(out, y)",
    "in one line": "loss = sum(criterion(out, y) for out in output)",
}
OPEN = {
    "one target": "for out in output:\n        loss += criterion(out, y[0])",
    "by number": "for i, out in enumerate(output):\n        loss += criterion(out, y[i])",
    "side by side": "for out, target in zip(output, y):\n        loss += criterion(out, target)",
    "a target of its own": "for out in output:\n        t = y.mean()\n        loss += criterion(out, t)",
    "with an output": "last = model(x)\n    for out in output:\n        loss += criterion(out, last)",
}


def listed(folder: Path, loop: str) -> list[str]:
    planned = conversion(folder, SCRIPT.replace("LOOP", loop))
    return [finding.message for finding in planned.findings if finding.code == "RF307"]


@pytest.mark.parametrize("form", OF_HEADS)
def test_what_is_compared_with_the_whole_batch_is_the_output_of_a_head(form: str, tmp_path: Path) -> None:
    assert listed(tmp_path, OF_HEADS[form]) == []


@pytest.mark.parametrize("form", OPEN)
def test_what_may_be_samples_is_listed(form: str, tmp_path: Path) -> None:
    assert listed(tmp_path, OPEN[form])
