"""Functions that make an entry for each pair of samples, and those that compute each row from all others."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import conversion
from convert.training_runs import trains_as_one
from verify.projects.launch import Launcher

SCRIPT = """\
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
loader = DataLoader(TensorDataset(torch.randn(22, 4).double(), torch.randint(0, 3, (22,))), batch_size=4)
model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
points = torch.randn(5, 2)
for epoch in range(2):
    for x, y in loader:
        z = model(x)
        s, loss = z.sum(1), 0
LOSS
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print("shown", loss.item())
print("shown", model[0].weight.sum().item())
"""
GATHERED = [
    "loss += F.cross_entropy(torch.tensordot(z, z, dims=([1], [1])), torch.arange(len(z)))",
    "loss += (torch.outer(s, s) - 1).pow(2).mean()",
    "loss += s.outer(s).sigmoid().mean()",
    "loss += torch.inner(z, z).logsumexp(1).mean()",
    "loss += F.linear(z, z).logsumexp(1).mean()",
    "loss += torch.cartesian_prod(s, z[:, 1]).prod(1).pow(2).mean()",
    "pairs = torch.combinations(z[:, 0], 2)\nloss += (pairs[:, 0] - pairs[:, 1]).pow(2).mean()",
    "i, j = torch.triu_indices(len(z), len(z), 1)\nloss += (z[i] - z[j]).pow(2).mean()",
    "i, j = torch.triu_indices(len(z), len(z), 1)\nloss += F.cosine_similarity(z[i], z[j]).mean()",
    "loss += F.cross_entropy(F.batch_norm(z, None, None, training=True), y)",
]  # fmt: skip
SUMMED = "loss += torch.tensordot(z, z, dims=([0], [0])).pow(2).mean()"
ROWS = [
    "loss += F.cross_entropy(F.batch_norm(z, torch.zeros(3).double(), torch.ones(3).double()), y)",
    "loss += torch.tensordot(z, model[2].weight, dims=([1], [0])).pow(2).mean()",
    "loss += F.linear(z, model[2].weight.t()).pow(2).mean()",
    "loss += F.cross_entropy(z, y)\nprint(torch.cdist(points.unsqueeze(0), points.unsqueeze(0)).mean().item())",
]


def script_of(*bodies: str) -> str:
    lines = "\n".join(bodies).splitlines()
    return SCRIPT.replace("LOSS", "".join(f"        {line}\n" for line in lines).rstrip())


@pytest.mark.parametrize("body", GATHERED)
def test_their_rows_are_gathered(body: str, tmp_path: Path) -> None:
    result = conversion(tmp_path, script_of(body))
    assert "rd.loss.batch_rows(" in result.files[0].text and not result.refusals


def test_a_contraction_over_the_samples_is_a_sum(tmp_path: Path) -> None:
    result = conversion(tmp_path, script_of(SUMMED))
    assert "rd.loss.batch_sum(torch.tensordot(z, z, dims=([0], [0])))" in result.files[0].text


@pytest.mark.parametrize("bodies", [GATHERED[:5], GATHERED[5:], [SUMMED]])
def test_two_processes_train_as_one(bodies: list[str], tmp_path: Path, launcher: Launcher) -> None:
    trains_as_one(tmp_path, script_of(*bodies), launcher)


@pytest.mark.parametrize("body", ROWS)
def test_rows_that_meet_no_others_stay(body: str, tmp_path: Path) -> None:
    result = conversion(tmp_path, script_of(body))
    assert "rd.loss." not in result.files[0].text and not result.refusals
    assert not [finding for finding in result.findings if finding.code in ("RF303", "RF309")]
