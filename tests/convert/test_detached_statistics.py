"""Losses with a factor that is computed from the batch without its gradient: a scale, a ratio of two losses."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import converted

SCRIPT = """\
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

loader = DataLoader(TensorDataset(torch.randn(64, 4), torch.randn(64, 1)), batch_size=8)
model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in loader:
    out = model(x)
    q = out[:, :1] * 2
{body}
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(loss.item())
"""


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["scale = 2.5 / q.abs().mean().detach()", "loss = -scale * q.mean()"], "rd.loss.batch_mean(q.abs().mean())"),
        (["scale = q.detach().abs().mean()", "loss = F.mse_loss(q, y) / (scale + 1)"], "rd.loss.batch_mean(q.detach()"),
        (["scale = q.data.pow(2).mean()", "loss = F.mse_loss(q, y) / scale.clamp(min=1)"], "rd.loss.batch_mean(q.data"),
        (["a = q.pow(2).mean()", "loss = F.mse_loss(q, y) * (a / 2).detach()"], "rd.loss.batch_mean(q.pow(2).mean())"),
        (["a = q.abs().mean()", "loss = a + a.item() * F.mse_loss(q, y)"], "a = rd.loss.batch_mean(q.abs().mean())"),
    ],
)
def test_a_factor_of_the_loss_is_that_of_all_ranks(tmp_path: Path, lines: list[str], expected: str) -> None:
    body = "\n".join(f"    {line}" for line in lines)
    text = "\n".join(converted(tmp_path, SCRIPT.format(body=body)))
    assert expected in text


@pytest.mark.parametrize(
    "lines",
    [
        ["shown = q.mean().detach()", "loss = F.mse_loss(q, y)", "print(shown.item())"],
        ["base = y.mean().detach()", "loss = F.mse_loss(q, y) + base"],
    ],
)
def test_a_figure_that_is_added_or_shown_is_not_a_factor(tmp_path: Path, lines: list[str]) -> None:
    body = "\n".join(f"    {line}" for line in lines)
    assert "batch_mean" not in "\n".join(converted(tmp_path, SCRIPT.format(body=body)))
