"""Layers and criteria that compute over the samples of a batch: a softmax of one column, classes that are samples."""

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
over_samples, over_classes = nn.Softmax(dim=0), nn.LogSoftmax(dim=1)
together = nn.Sequential(nn.ReLU(), nn.Softmax(dim=0))
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in loader:
    out = model(x)
    loss = criterion(out, y) + TERM
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("shown", loss.item())
"""
OVER_SAMPLES = [
    "F.softmax(out[:, :1].squeeze(1), dim=0).pow(2).mean()",
    "out[:, :1].softmax(0).pow(2).mean()",
    "torch.softmax(out, 0).pow(2).mean()",
    "F.normalize(out[:, 0], dim=0).mean()",
    "over_samples(out).pow(2).mean()",
    "together(out).pow(2).mean()",
    "nn.LogSoftmax(0)(out).pow(2).mean()",
    "F.cross_entropy(out.t(), torch.arange(3))",
    "criterion(out[:, 0].unsqueeze(0), torch.tensor([0]))",
    "F.cross_entropy(out[:, :1].reshape(1, -1), torch.tensor([0]))",
    "F.kl_div(out[:, 0].reshape(-1).log_softmax(-1), F.softmax(y.float(), -1), reduction='sum')",
]
OF_EACH = [
    "over_classes(out).pow(2).mean()",
    "nn.Softmax(-1)(out).pow(2).mean()",
    "F.softmax(out, 1).pow(2).mean()",
    "F.normalize(out).mean()",
    "F.cross_entropy(out.reshape(-1, 3), y.reshape(-1))",
    "F.cross_entropy(out.unsqueeze(2), y.unsqueeze(1))",
    "F.nll_loss(over_classes(out), y)",
]
SAID = ("RF309", "RF303")


@pytest.mark.parametrize("term", OVER_SAMPLES)
def test_the_samples_are_gathered_or_listed(term: str, tmp_path: Path) -> None:
    result = conversion(tmp_path, SCRIPT.replace("TERM", term))
    assert any(finding.code in SAID for finding in result.findings)
    text = result.files[0].text
    assert "batch_rows(F.softmax(y" not in text and "batch_rows(out[:, 0].reshape(-1).log_softmax" not in text


@pytest.mark.parametrize("term", OF_EACH)
def test_a_softmax_of_each_sample_stays(term: str, tmp_path: Path) -> None:
    result = conversion(tmp_path, SCRIPT.replace("TERM", term))
    assert not result.refusals and not any(finding.code in SAID for finding in result.findings)


@pytest.mark.parametrize(
    "term", ["over_samples(out).pow(2).mean()", "F.cross_entropy(out.t(), torch.arange(3))", OVER_SAMPLES[-1]]
)
def test_gathered_samples_train_as_in_one_process(term: str, tmp_path: Path, launcher: Launcher) -> None:
    trains_as_one(tmp_path, SCRIPT.replace("TERM", term), launcher, rel=1e-5)
