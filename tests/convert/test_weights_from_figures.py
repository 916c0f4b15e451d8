"""Losses that are weighed by figures of the epochs before, which a script keeps in an array."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import conversion

SCRIPT = """\
import sys

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def errors(out, y):
    error = (out - y).abs().detach().cpu().numpy()
    return np.mean(error), np.median(error)


def fit(out, y, kind):
    if kind == "square":
        loss = nn.functional.mse_loss(out, y)
    if kind == "other":
        loss = OTHER
    return loss


class Confusion:
    def __init__(self, n):
        self.n, self.mat = n, torch.zeros(n, n)

    def update(self, out, y):
        self.mat += torch.bincount(2 * (y > 0).long() + (out > 0).long(), minlength=4).view(2, 2)

    def get(self):
        return (torch.diag(self.mat).sum() / self.mat.sum()).item()


def train(loader, model, optimizer, epochs=4):
    shown, weight = np.zeros([epochs, 4]), np.ones([2, epochs])
    for epoch in range(epochs):
        cost, confusion = np.zeros(4), Confusion(2)
        if epoch > 1:
            for i in range(2):
                weight[i, epoch] = np.exp(shown[epoch - 1, i] / shown[epoch - 2, i])
        for x, y in loader:
            out = model(x)
            losses = [fit(out[:, 0], y[:, 0], "square"), fit(out[:, 1], y[:, 1], "other")]
            loss = sum([weight[i, epoch] * losses[i] for i in range(2)])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            confusion.update(out[:, 0], y[:, 0])
            cost[0] = losses[0].item()
            cost[1] = losses[1].item()
            PUT
            shown[epoch] += cost / len(loader)
        shown[epoch, 3] = confusion.get()
        print(shown[epoch])


x = torch.randn(64, 6)
loader = DataLoader(TensorDataset(x, x[:, :2]), batch_size=16, shuffle=True)
model = nn.Linear(6, 2)
train(loader, model, torch.optim.SGD(model.parameters(), lr=0.1))
"""


@pytest.mark.parametrize("other", ["nn.functional.l1_loss(out, y)", "getattr(nn.functional, sys.argv[1])(out, y)"])
def test_figures_of_batches_are_not_taken_for_samples(tmp_path: Path, other: str) -> None:
    script = SCRIPT.replace("OTHER", other).replace("PUT", "cost[2], cost[3] = errors(out, y)")
    result = conversion(tmp_path, script)
    assert not result.refusals
    assert "rd.loss.batch_mean(nn.functional.mse_loss(out, y))" in result.files[0].text  # which the weights are made of
    assert "rank 0's share: shown[epoch], is printed" in {finding.message for finding in result.listed}


def test_samples_of_batches_are_kept(tmp_path: Path) -> None:
    script = SCRIPT.replace("OTHER", "nn.functional.l1_loss(out, y)").replace(
        "PUT", "cost[2:] = out[0].detach().numpy()"
    )
    assert "samples-kept" in {finding.kind for finding in conversion(tmp_path, script).refusals}
