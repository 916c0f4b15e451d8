"""A number of one rank's batch that weighs a term of the loss is reduced, or listed: else each rank trains another."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import conversion
from convert.training_runs import trains_as_one
from verify.projects.launch import Launcher

SCRIPT = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from tqdm import tqdm

torch.manual_seed(0)
torch.set_default_dtype(torch.float64)
loader = DataLoader(TensorDataset(torch.randn(24, 4), torch.randn(24, 1)), 8)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))

    def forward(self, x):
        return self.layers(x)

    def balance(self, a, b):
        last = self.layers[-1]
        weight = last.weight
        slope_a = torch.autograd.grad(a, weight, retain_graph=True)[0]
        slope_b = torch.autograd.grad(b, weight, retain_graph=True)[0]
        return (torch.norm(slope_a) / (torch.norm(slope_b) + 1e-4)).detach()


model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
weight, weights = 1.0, [1.0, 0.5]
for epoch in range(2):
    for step, (x, y) in zip(tqdm(range(len(loader))), loader):
        out = model(x)
        a = nn.functional.mse_loss(out, y)
        b = (out - y).abs().mean()
        LOSS
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        AFTER
print("shown", *(value for part in model.parameters() for value in part.flatten().tolist()))
"""
WEIGHTS = {
    "a running mean": (
        "weights[1] = 0.9 * weights[1] + 0.1 * b.item(); loss = weights[0] * a + weights[1] * b",
        "pass",
    ),
    "a running mean of the step before": ("loss = a + weight * b", "weight = 0.9 * weight + 0.1 * b.item()"),
    "a power of a number": ("loss = a + weight * b", "weight = b.item() ** 0.5"),
    "a decision": (
        "loss = a + weight * b",
        "if b.item() > 0.8:\n            weight = weight * 1.5\n        else:\n            weight = weight * 0.5",
    ),
    "a ratio": ("loss = a + a.detach() / (b.detach() + 1e-6) * b", "pass"),
}


@pytest.mark.parametrize("name", WEIGHTS)
def test_two_processes_train_the_same_loss_as_one(name: str, tmp_path: Path, launcher: Launcher) -> None:
    loss, after = WEIGHTS[name]
    trains_as_one(tmp_path, SCRIPT.replace("LOSS", loss).replace("AFTER", after), launcher, (1, 2))


def test_a_weight_of_own_gradients_is_refused(tmp_path: Path) -> None:
    script = SCRIPT.replace("LOSS", "loss = a + model.balance(a, b) * b").replace("AFTER", "pass")
    refused = conversion(tmp_path, script).refusals
    assert {finding.kind for finding in refused} == {"parameter-gradients"}


def test_a_weight_that_all_ranks_have_is_left(tmp_path: Path) -> None:
    script = SCRIPT.replace("LOSS", "weight = min(1.0, step / 10); loss = a + weight * b").replace("AFTER", "pass")
    assert not [finding for finding in conversion(tmp_path, script).listed if "rank 0's share" in finding.message]
