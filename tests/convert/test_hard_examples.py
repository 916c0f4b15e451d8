"""Losses of the largest or smallest losses of a batch: which samples these are depends on all of the batch."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import conversion
from convert.training_runs import trains_as_one
from verify.projects.launch import Launcher

SCRIPT = """\
import heapq

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
loader = DataLoader(TensorDataset(torch.randn(32, 4), torch.randint(0, 3, (32,))), batch_size=8)
model = nn.Linear(4, 3)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def hardest(losses, count=4, dim=-1):
    BODY


for x, y in loader:
    out = model(x)
    losses = F.cross_entropy(out, y, reduction="none")
    loss = criterion(out, y) + hardest(GIVEN)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("shown", loss.item())
"""
COUPLED = [
    "return sum(sorted(losses, reverse=True)[:count]) / count",
    "return sum(sorted(losses)[-count:])",
    "return sum(heapq.nlargest(count, losses)) / count",
    "return sum(heapq.nsmallest(count, list(losses)))",
    "return losses.topk(count, dim)[0].mean()",
    "return torch.topk(losses, count, dim=dim).values.sum() / count",
    "return losses.sort(-1)[0][count:].mean()",
    "return losses.kthvalue(count)[0] + losses.median()",
    "rows = [row for row in losses]\n    rows.sort()\n    return sum(rows[:count])",
]
SINGLE = [
    ("return losses.topk(2, dim)[0].mean()", "out"),
    ("return losses.sort(-1)[0][:, :2].mean()", "out"),
    ("return sum(losses) / len(losses)", "losses"),
    ("return sum([row.abs().max() for row in losses]) / len(losses)", "out"),
    ("return sum(sorted(losses)[:2])", "[p.abs().mean() for p in model.parameters()]"),
]
LISTED_OR_REFUSED = ("RF309", "RF303")


@pytest.mark.parametrize("given", ["losses", "out[:, 0]"])
@pytest.mark.parametrize("body", COUPLED)
def test_the_samples_are_gathered_or_listed(body: str, given: str, tmp_path: Path) -> None:
    result = conversion(tmp_path, SCRIPT.replace("BODY", body).replace("GIVEN", given))
    is_said = any(finding.code in LISTED_OR_REFUSED for finding in result.findings)
    assert is_said or "batch_rows" in result.files[0].text


@pytest.mark.parametrize(("body", "given"), SINGLE)
def test_entries_of_single_samples_stay(body: str, given: str, tmp_path: Path) -> None:
    result = conversion(tmp_path, SCRIPT.replace("BODY", body).replace("GIVEN", given))
    assert not any(finding.code in LISTED_OR_REFUSED for finding in result.findings)
    assert "batch_rows" not in result.files[0].text


@pytest.mark.parametrize("body", ["return sum(sorted(losses)[:count])", "return losses.topk(count, dim)[0].mean()"])
def test_gathered_examples_are_those_of_one_process(body: str, tmp_path: Path, launcher: Launcher) -> None:
    script = SCRIPT.replace("BODY", body).replace("GIVEN", "out[:, 0]")
    trains_as_one(tmp_path, script, launcher, rel=1e-5)
