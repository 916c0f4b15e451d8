"""Python's sum of several outputs is one for each sample; that of the rows of a batch is one number."""

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
loader = DataLoader(TensorDataset(torch.randn(32, 4), torch.randint(0, 3, (32,))), batch_size=8)
model = nn.Linear(4, 3)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in loader:
    out = model(x)
    losses = F.cross_entropy(out, y, reduction="none")
    heads = [out, 2 * out, model(-x)]
    loss = LOSS
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("shown", loss.item())
"""
OF_EACH = [
    "criterion(sum(heads), y)",
    "criterion(sum(heads) / len(heads), y)",
    "criterion(sum(heads[:2]), y)",
    "criterion(sum(heads[k] for k in range(3)), y)",
    "criterion(sum([out, 2 * out]), y)",
    "criterion(sum({'a': out, 'b': -out}.values()), y)",
    "sum([losses, out.pow(2).mean(1)]).mean()",
]
OF_ALL = ["sum(losses)", "sum([losses, out.pow(2).mean(1)]).sum()", "sum(sum(part) for part in [losses, out[:, 0]])"]


@pytest.mark.parametrize("loss", OF_EACH)
def test_a_sum_of_outputs_stays_of_each_sample(loss: str, tmp_path: Path) -> None:
    result = conversion(tmp_path, SCRIPT.replace("LOSS", loss))
    assert not result.refusals and not result.listed
    assert not any(finding.code == "RF309" for finding in result.findings)
    text = result.files[0].text
    assert "batch_sum" not in text and "sum_loss" not in text


@pytest.mark.parametrize("loss", OF_ALL)
def test_a_sum_of_samples_is_one(loss: str, tmp_path: Path) -> None:
    assert "sum_loss" in conversion(tmp_path, SCRIPT.replace("LOSS", loss)).files[0].text


@pytest.mark.parametrize("loss", [OF_EACH[1], OF_EACH[-1], OF_ALL[1]])
def test_it_trains_as_in_one_process(loss: str, tmp_path: Path, launcher: Launcher) -> None:
    trains_as_one(tmp_path, SCRIPT.replace("LOSS", loss), launcher, rel=1e-5)
