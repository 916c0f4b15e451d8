"""Batches that a training draws one at a time, by next(): what is compared in them, and what counts the steps."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import conversion, converted

HEAD = """\
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
loader = DataLoader(TensorDataset(torch.randn(24, 5), torch.arange(24) % 4), 8)
model = nn.Linear(5, 3)
optimizer = optim.SGD(model.parameters(), lr=0.1)
batches = iter(loader)


def distances(a, b):
    return (a.pow(2).sum(1)[:, None] + b.pow(2).sum(1) - 2 * a @ b.t()).clamp(min=1e-12).sqrt()


class Hardest:
    def __call__(self, z, y):
        far = distances(z, z).detach().cpu().numpy()
        y = y.cpu().numpy().reshape(-1, 1)
        positive = np.argmax(np.where(y == y.T, far, -np.inf), axis=1)
        negative = np.argmin(np.where(y == y.T, np.inf, far), axis=1)
        return z, z[positive], z[negative]


def draw(batches):
    x, y = next(batches)
    return x.float(), y


class Endless:
    def __init__(self, loader):
        self.loader, self.batches = loader, iter(loader)

    def get(self):
        try:
            return next(self.batches)
        except StopIteration:
            self.batches = iter(self.loader)
            return next(self.batches)


hardest, endless, step = Hardest(), Endless(loader), 0
"""
AGAIN = """\
try:
    x, y = next(batches)
except StopIteration:
    batches = iter(loader)
    x, y = next(batches)
"""
STEP = """\
z = model(x)
anchor, positive, negative = hardest(z, y)
loss = F.soft_margin_loss((anchor - negative).norm(dim=1) - (anchor - positive).norm(dim=1), torch.ones(len(anchor)))
optimizer.zero_grad()
loss.backward()
optimizer.step()
step += 1
if step == 6:
    print(step, loss.item())
    break
"""


def script(loop: str, draws: str) -> str:
    return HEAD + f"{loop}\n    " + (draws.rstrip("\n") + "\n" + STEP).replace("\n", "\n    ").rstrip() + "\n"


@pytest.mark.parametrize("loop", ["while True:", "for step in range(10):", "while step < 10:"])
@pytest.mark.parametrize("draws", ["x, y = next(batches)", "batch = next(batches)\nx, y = batch[0], batch[1]", AGAIN])
def test_samples_that_are_compared_are_those_of_all_ranks(loop: str, draws: str, tmp_path: Path) -> None:
    lines = converted(tmp_path, script(loop, draws))
    (line,) = (line.strip() for line in lines if "= hardest(" in line)
    assert line == "anchor, positive, negative = hardest(rd.loss.batch_rows(z), rd.loss.batch_rows(y))"


@pytest.mark.parametrize("draws", ["x, y = draw(batches)", "x, y = endless.get()"])
def test_so_are_those_that_a_function_draws(draws: str, tmp_path: Path) -> None:
    text = "\n".join(converted(tmp_path, script("for step in range(10):", draws)))
    assert "hardest(rd.loss.batch_rows(z), rd.loss.batch_rows(y))" in text


def test_the_number_of_a_step_is_not_of_its_batch(tmp_path: Path) -> None:
    lines = "x, y = next(batches)\nif step % 4 == 3:\n    optimizer.param_groups[0]['lr'] *= 0.5\nprint(step / 10)"
    found = conversion(tmp_path, script("for step in range(10):", lines)).listed
    assert not found
