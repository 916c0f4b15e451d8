"""Criteria that are given statistics of the batch: weights by how often a class is in it, outputs less their mean."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import conversion
from convert.training_runs import trains_as_one
from verify.projects.launch import Launcher

SCRIPT = """\
import torch
import torch.nn.functional as F
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
inputs = torch.rand(16, 5).double()
loader = DataLoader(TensorDataset(inputs, (inputs.sum(1) * 7).long() % 3), 6)
model = nn.Linear(5, 3).double()
optimizer = optim.SGD(model.parameters(), lr=0.1)
for x, y in loader:
    out = model(x)
    LINES
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("shown", *model.weight.detach().flatten().tolist())
"""
TRAINED = """\
counts = torch.bincount(y, minlength=3)
loss = F.cross_entropy(out, y, weight=counts.sum() / (counts + 1).double())
hits = F.one_hot(y, 3).double()
loss = loss + F.mse_loss(out - out.mean(0), hits)
loss = loss + F.binary_cross_entropy_with_logits(out, hits, pos_weight=1 / hits[:, 1:].mean())
number = hits[:, :2].sum().clamp(min=1)
loss = loss + F.binary_cross_entropy_with_logits(out, hits, reduction="none").sum() / number
points = x.clone().requires_grad_()
slopes = torch.autograd.grad(model(points).square().sum(), points, create_graph=True)[0]
loss = loss + ((slopes.norm(2, dim=1) - 1) ** 2).mean()
"""


def script(lines: str) -> str:
    return SCRIPT.replace("LINES", lines.rstrip().replace("\n", "\n    "))


def test_the_loss_is_that_of_the_whole_batch(tmp_path: Path, launcher: Launcher) -> None:
    trains_as_one(tmp_path, script(TRAINED), launcher, (1, 2, 3), rel=1e-8)


@pytest.mark.parametrize(
    "lines",
    [
        "loss = F.cross_entropy(out, y, weight=torch.bincount(y).double())",
        "loss = F.mse_loss(out / out.std(0), F.one_hot(y, 3))",
        "hits = F.one_hot(y, 3).double()\n"
        "loss = F.binary_cross_entropy_with_logits(out, hits, pos_weight=(hits.numel() - hits.sum()) / 9)",
        'losses = F.cross_entropy(out, y, reduction="none")\nloss = losses.topk(int(0.7 * losses.numel()))[0].mean()',
        "errors = (out - F.one_hot(y, 3)).abs()\nbound = 0.2 * errors.max().item()\n"
        "loss = torch.where(errors < bound, errors, (errors**2 + bound**2) / (2 * bound)).mean()",
        "errors = (out - F.one_hot(y, 3)).abs()\nloss = (errors / errors.amax()).mean()",
    ],
)
def test_rows_are_gathered_for_other_than_sums(lines: str, tmp_path: Path) -> None:
    result = conversion(tmp_path, script(lines))
    assert "rd.loss.batch_rows(" in result.files[0].text
    assert not any(finding.code == "RF309" for finding in result.findings)


@pytest.mark.parametrize(
    "lines",
    [
        "loss = F.cross_entropy(out, y, label_smoothing=0.1)",
        "loss = F.mse_loss(out / out.std(1, keepdim=True), F.one_hot(y, 3))",
        "loss = F.mse_loss(out - out.mean(1, keepdim=True), F.one_hot(y, 3))",
        "loss = F.mse_loss(out.max(torch.zeros(3)), out.topk(3)[0].detach())",
        "loss = F.cross_entropy(out, out.max(1)[1])",
    ],
)
def test_statistics_of_one_sample_are_unchanged(lines: str, tmp_path: Path) -> None:
    assert not [f for f in conversion(tmp_path, script(lines)).findings if f.code in ("RF302", "RF309")]
