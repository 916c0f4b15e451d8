"""Noise of which only pictures are made keeps its number of rows; noise that a loss is computed of has a rank's."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import converted

SCRIPT = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(3, 3)

    def forward(self, z):
        return self.net(z)


def sample(model, z):
    with torch.no_grad():
        return model(z)


size = 8
loader = DataLoader(TensorDataset(torch.randn(64, 3)), size, drop_last=True)
model, other = Generator(), nn.Linear(3, 1)
fixed = torch.randn(size, 3)
given = torch.empty(size, 3)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step, (x,) in enumerate(loader):
    given.normal_()
    loss = other(model({noise})).mean() - other(model(x)).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 4 == 0:
        {shown}
        print(images.mean())
"""
SHOWN = {
    "without gradients": "with torch.no_grad(): images = model(fixed)",
    "by a function": "images = sample(model, fixed)",
    "with gradients": "images = model(fixed)",
    "drawn again": "with torch.no_grad(): images = model(torch.randn(size, 3))",
}


@pytest.mark.parametrize("shown", SHOWN)
def test_shown_noise_keeps_its_rows(tmp_path: Path, shown: str) -> None:
    lines = converted(tmp_path, SCRIPT.format(noise="given", shown=SHOWN[shown]))
    assert "fixed = torch.randn(size, 3)" in lines
    assert "given = torch.empty(rd.data.own_batch_size(size), 3)" in lines
    assert sum("own_batch_size" in line for line in lines) == 1


@pytest.mark.parametrize("noise", ["fixed", "fixed if step else given"])
def test_noise_of_a_loss_has_the_rows_of_a_rank(tmp_path: Path, noise: str) -> None:
    lines = converted(tmp_path, SCRIPT.format(noise=noise, shown=SHOWN["without gradients"]))
    assert "fixed = torch.randn(rd.data.own_batch_size(size), 3)" in lines


SHARED = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def noise(count):
    return torch.empty(count, 3).normal_()


def fake(model, count):
    return model(noise(count))


def pictures(model, count, label):
    {shown}
    with torch.no_grad():
        return model(z) + torch.tensor([[label]] * count)


size = 8
batches = iter(DataLoader(TensorDataset(torch.randn(640, 3)), size))
model, other = nn.Linear(3, 3), nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(9):
    x = next(batches)[0]
    loss = other(fake(model, size)).mean() - other(model(x)).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 3 == 0:
        torch.save(pictures(model, size, 1.0), f"{{step}}.pt")
"""


@pytest.mark.parametrize("shown", ["z = noise(count)", "z = 2 * noise(count=count)", "z = noise(2 * count)[:count]"])
def test_a_function_that_draws_for_pictures_too_is_told_by_the_training_alone(shown: str, tmp_path: Path) -> None:
    lines = converted(tmp_path, SHARED.format(shown=shown))
    (line,) = (line for line in lines if "own_batch_size" in line)
    assert line in ("return model(noise(rd.data.own_batch_size(count)))", SHARED_TOLD)


SHARED_TOLD = "loss = other(fake(model, rd.data.own_batch_size(size))).mean() - other(model(x)).mean()"
