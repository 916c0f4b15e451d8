"""Losses of single samples that are multiplied by the number of samples before they are added up."""

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
loader = DataLoader(TensorDataset(torch.randn(28, 4), torch.randint(0, 3, (28,))), batch_size=8)
model = nn.Linear(4, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for x, y in loader:
    losses = F.cross_entropy(model(x), y, reduction="none")
    number = len(x)
    loss = LOSS
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("shown", loss.item())
"""
GATHERED = [
    "(losses * len(x)).sum()",
    "torch.sum(x.size(0) * losses)",
    "(number * losses).sum()",
    "(losses * len(x)).sum() / len(x)",
]


@pytest.mark.parametrize("loss", GATHERED)
def test_the_samples_of_all_ranks_count(loss: str, tmp_path: Path) -> None:
    result = conversion(tmp_path, SCRIPT.replace("LOSS", loss))
    assert not result.refusals
    assert "batch_rows" in result.files[0].text and "batch_count" in result.files[0].text
    assert "sum_loss" not in result.files[0].text


def test_other_functions_of_their_number_are_listed(tmp_path: Path) -> None:
    result = conversion(tmp_path, SCRIPT.replace("LOSS", "(losses * len(x) ** 2).sum() / 64"))
    assert any(finding.code == "RF309" for finding in result.findings)


@pytest.mark.parametrize("loss", [*GATHERED, "(losses * len(x)).mean()"])
def test_it_trains_as_in_one_process(loss: str, tmp_path: Path, launcher: Launcher) -> None:
    trains_as_one(tmp_path, SCRIPT.replace("LOSS", loss), launcher, rel=1e-5)
