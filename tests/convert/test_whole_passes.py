"""Passes over the training loader that do not train: all ranks have what one process has."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import conversion, converted

SCRIPT = """\
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Scaler:
    def fit(self, x):
        self.mean, self.std = x.mean(0), x.std(0)

    def fit_again(self, x):
        self.mean = x.mean()

    def transform(self, x):
        return (x - self.mean) / self.std


def errors(model, loader):
    model.eval()
    pairs = [0]
    with torch.no_grad():
        for x, y in loader:
            pairs += list(zip(y[:, 0].tolist(), (model(x) - y).abs().mean(1).tolist()))
    return pairs


def center(model, loader):
    model.eval()
    number, total = 0, torch.zeros(2)
    with torch.no_grad():
        for x, y in loader:
            number += len(x)
            total += torch.sum(model(x), dim=0)
    return total / number


loader = DataLoader(TensorDataset(torch.randn(17, 4), torch.randn(17, 2)), batch_size=4, shuffle=True)
model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler, goal = Scaler(), torch.zeros(2)
scaler.fit(torch.zeros(3, 4))
BEFORE
for epoch in range(2):
    for x, y in loader:
        loss = (model(scaler.transform(x)) - y - goal).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    AFTER
"""
WHOLE = {
    "a first batch": ("scaler.fit(next(iter(loader))[0])", "pass"),
    "all samples": ("scaler.fit(torch.cat([x for x, _ in loader]))", "pass"),
    "a loop": ("for x, y in loader:\n    scaler.fit(x)", "pass"),
    "an evaluation": ("pass", "print(np.percentile([e for _, e in errors(model, loader)[1:]], 95))"),
}
LEFT = {
    "a shape": ("width = next(iter(loader))[0].shape[-1]", "pass"),
    "names of shapes": ("a, b = next(iter(loader))\nwidth, height = a.size(1), b.shape[1]", "pass"),
    "training alone": ("pass", "pass"),
}


def made(form: tuple[str, str]) -> str:
    before, after = form
    return SCRIPT.replace("BEFORE", before).replace("AFTER", after)


@pytest.mark.parametrize("form", WHOLE)
def test_every_rank_draws_all_batches(tmp_path: Path, form: str) -> None:
    lines = converted(tmp_path, made(WHOLE[form]))
    assert sum("rd.evaluation.same_batches(loader)" in line for line in lines) == 1
    assert "loader = rd.distribute_loader(loader)" in lines
    assert not any("batch_mean" in line for line in lines)


@pytest.mark.parametrize("form", LEFT)
def test_nothing_else_draws_them(tmp_path: Path, form: str) -> None:
    assert not any("same_batches" in line for line in converted(tmp_path, made(LEFT[form])))


def test_a_figure_of_all_samples_is_not_listed(tmp_path: Path) -> None:
    assert not conversion(tmp_path, made(WHOLE["an evaluation"])).listed


def test_sums_over_the_batches_become_those_of_all_ranks_once(tmp_path: Path) -> None:
    lines = converted(tmp_path, made(("goal = center(model, loader)", "pass")))
    assert "total += torch.sum(model(x), dim=0)" in lines
    assert "number, total = rd.sum_over_ranks(number, total)" in lines
