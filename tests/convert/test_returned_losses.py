"""Which of the values that a function returns is the loss, and over what it is a sum."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import conversion

from retrofit.training import read_project
from retrofit.training.losses.reductions.kinds import MEAN, SUM
from retrofit.training.losses.reductions.reduction import backward_kind

HEAD = """\
import torch
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset

loader = DataLoader(TensorDataset(torch.rand(8, 5, 3), torch.rand(8, 5, 3)), 4, shuffle=True)
model = nn.Linear(3, 3)
optimizer = optim.Adam(model.parameters(), lr=0.1)
"""
LOOP = """
for x, y in loader:
    optimizer.zero_grad()
    out = model(x)
    {loss}
    loss.backward()
    optimizer.step()
"""
FLAGGED = """
class Relative:
    def __init__(self, average=True, reduction=True):
        self.average, self.reduction = average, reduction

    def __call__(self, x, y):
        norms = (x - y).flatten(1).norm(dim=1)
        if self.reduction:
            if self.average:
                return norms.mean()
            else:
                return norms.sum()
        return norms

    def in_the_other_order(self, x, y):
        norms = (x - y).flatten(1).norm(dim=1)
        if not self.reduction:
            return norms
        elif self.average:
            return norms.mean()
        return norms.sum()


"""
OF_LABELS = """
def weighted(out, y):
    count = y.sum()
    if count.item() == 0:
        return count
    return ((out - y) ** 2 * y).mean()


"""
LOSSES = {
    "sum by a flag": (FLAGGED, "loss = Relative(average=False)(out, y)", SUM),
    "mean by a flag": (FLAGGED, "loss = Relative()(out, y)", MEAN),
    "sum by a flag, method": (FLAGGED, "loss = Relative(average=False).in_the_other_order(out, y)", SUM),
    "a count of labels where there are none": (OF_LABELS, "loss = weighted(out, y)", MEAN),
    "terms in a dict": (OF_LABELS, "loss = sum({'a': weighted(out, y), 'b': (out - y).abs().mean()}.values())", MEAN),
}


@pytest.mark.parametrize("shape", LOSSES)
def test_the_branch_that_is_taken_says_what_the_loss_is(tmp_path: Path, shape: str) -> None:
    functions, loss, kind = LOSSES[shape]
    (tmp_path / "train.py").write_text(HEAD + functions + LOOP.format(loss=loss))
    project = read_project(tmp_path / "train.py")
    frame = project.paths[0].frames[0]
    assert backward_kind(project, frame.node, frame.scope).parts == {kind}  # type: ignore[arg-type]


ROWS = {
    "shape": "n, k = out.shape[:2]",
    "size": "n, k, _ = out.size()",
    "length": "n, k = len(out), 5",
}


@pytest.mark.parametrize("rows", ROWS)
def test_a_flat_tensor_gets_its_samples_back(tmp_path: Path, rows: str) -> None:
    loss = "flat = ((out - y) ** 2).sum(-1).reshape(-1) * y.sum(-1).reshape(-1)"
    loss = f"{ROWS[rows]}\n    {loss}\n    loss = (flat.view(n, k).sum(1) / y.reshape(n, -1).sum(1)).mean()"
    (text,) = (file.text for file in conversion(tmp_path, HEAD + LOOP.format(loss=loss)).files)
    assert "batch_sum" not in text
    assert "sum_loss" not in text
