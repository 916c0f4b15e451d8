"""Figures in which samples of one batch meet: those that meet on a rank are others, so the figure is its own."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import conversion

SCRIPT = """\
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

loader = DataLoader(TensorDataset(torch.randn(64, 4), torch.randint(0, 3, (64,))), batch_size=8, shuffle=True)
model = nn.Linear(4, 3)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def distance(one, other):
    return F.l1_loss(one, other)


for x, y in loader:
    optimizer.zero_grad()
    out = model(x)
    loss = criterion(out, y)
    loss.backward()
    optimizer.step()
    print(SHOWN)
"""
MEETING = [
    "F.mse_loss(out, out.flip(0)).item()",
    "distance(out, torch.flip(out, [0])).item()",
    "nn.MSELoss()(out, out.roll(1, 0)).item()",
    "F.mse_loss(out[out[:, 0].argsort()], out).item()",
    "F.mse_loss(out, out[[1, 0, 3, 2, 5, 4, 7, 6]]).item()",
    "F.mse_loss(out[::2], out[1::2]).item()",
    "F.mse_loss(*out.chunk(2)).item()",
    "F.mse_loss(out, torch.cat([out[1:], out[:1]])).item()",
    "F.mse_loss(out, torch.stack(list(reversed(out)))).item()",
    "F.mse_loss(out, out[0].expand_as(out)).item()",
    "F.mse_loss(out, out.mean(0, keepdim=True).expand_as(out)).item()",
    "F.mse_loss(out, out.cumsum(0)).item()",
    "(out[:, 0].sort()[0] * torch.arange(len(out))).mean().item()",
    "out[:, 0].topk(3)[0].mean().item()",
    "out[:, 0].argsort().float().mean().item()",
    "torch.corrcoef(out.T)[0, 1].item()",
]
SOUND = [
    "F.mse_loss(out, out.flip(1)).item()",
    "F.mse_loss(out[:, 1:], out[:, :-1]).item()",
    "F.mse_loss(out[:, [1, 0, 2]], out).item()",
    "F.mse_loss(out.reshape(len(x), -1), out).item()",
    "F.mse_loss(out - out.mean(1, keepdim=True), out).item()",
    "distance(out.topk(2, dim=1)[0], out.sort(1)[0][:, :2]).item()",
    "F.mse_loss(*model(torch.cat([x, 2 * x])).chunk(2)).item()",
    "(out.argmax(1) == y).float().mean().item()",
    "np.bincount(y.numpy(), minlength=3)",
    "nn.CrossEntropyLoss(weight=torch.ones(3), reduction='sum')(out, y).item()",
]


@pytest.mark.parametrize("shown", MEETING)
def test_a_figure_in_which_samples_meet_is_listed(shown: str, tmp_path: Path) -> None:
    result = conversion(tmp_path, SCRIPT.replace("SHOWN", shown))
    (listed,) = result.listed
    assert "is printed" in listed.message and f"print({shown})" in result.files[0].text


@pytest.mark.parametrize("shown", SOUND)
def test_a_figure_of_single_samples_is_that_of_all_ranks(shown: str, tmp_path: Path) -> None:
    result = conversion(tmp_path, SCRIPT.replace("SHOWN", shown))
    assert not result.refusals and not result.listed
    assert "print(rd." in result.files[0].text
