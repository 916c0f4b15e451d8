"""Statistics of a batch that is drawn before the training, and by which the training scales its samples."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import conversion

SCRIPT = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

loader = DataLoader(TensorDataset(torch.randn(64, 4), torch.randn(64, 1)), 8)
first, _ = next(iter(loader))
center, scale = first.mean(0), SCALE
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in loader:
    loss = nn.functional.mse_loss(model((x - center) / scale), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    "scale", ["first.std(0)", "first.var(dim=0)", "torch.std(first, 0)", "first.norm()", "first.abs().max()"]
)
def test_what_is_neither_sum_nor_mean_is_of_all_ranks_or_listed(scale: str, tmp_path: Path) -> None:
    result = conversion(tmp_path, SCRIPT.replace("SCALE", scale))
    (text,) = (file.text for file in result.files if file.path.name == "train.py")
    listed = [finding for finding in result.findings if finding.code == "RF309" and not finding.edits]
    assert "next(iter(rd.evaluation.same_batches(loader)))" in text or [finding.place.line for finding in listed] == [7]


@pytest.mark.parametrize("scale", ["first.shape[1] ** 0.5", "model.weight.std()", "torch.randn(4).std()"])
def test_what_all_ranks_have_is_not_listed(scale: str, tmp_path: Path) -> None:
    script = SCRIPT.replace("SCALE", "1.0").replace("/ scale", f"/ ({scale})")
    assert not [f for f in conversion(tmp_path, script).findings if f.code == "RF309" and not f.edits]
