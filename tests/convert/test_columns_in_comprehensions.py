"""Statistics of each column of a batch, computed in a comprehension: all ranks go through as many columns."""

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
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in loader:
    out = model(x)
    loss = F.cross_entropy(out, y) + TERM
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("shown", loss.item())
"""
TERMS = [
    "torch.stack([c.var() for c in out.unbind(1)]).mean()",
    "sum(c.var() for c in out.unbind(1))",
    "torch.stack([c.mean() for c in out.unbind(1)]).pow(2).sum()",
    "torch.stack([c.std() for c in out.split(1, 1)]).mean()",
    "sum([c.mean() ** 2 for c in torch.unbind(out, 1)])",
]


@pytest.mark.parametrize("term", TERMS)
def test_a_comprehension_over_columns_decides_nothing(term: str, tmp_path: Path) -> None:
    result = conversion(tmp_path, SCRIPT.replace("TERM", term))
    assert not result.refusals and "rd.loss.batch_" in result.files[0].text


def test_a_test_in_a_comprehension_is_one(tmp_path: Path) -> None:
    term = "sum([c.mean() ** 2 for c in out.unbind(1) if c.mean() > 0])"
    result = conversion(tmp_path, SCRIPT.replace("TERM", term))
    assert any(f.refusal or f.code in ("RF309", "RF402") for f in result.findings)


@pytest.mark.parametrize("term", TERMS[:3])
def test_it_trains_as_in_one_process(term: str, tmp_path: Path, launcher: Launcher) -> None:
    trains_as_one(tmp_path, SCRIPT.replace("TERM", term), launcher, rel=1e-5)
