"""Rows that are added up by class in a loss: the sums are those of all ranks' rows."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import converted
from convert.training_runs import trains_as_one
from verify.projects.launch import Launcher

SCRIPT = """\
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
loader = DataLoader(TensorDataset(torch.randn(40, 4), torch.randint(0, 3, (40,))), batch_size=6)
model = nn.Linear(4, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
classes = 3
for x, y in loader:
    out = model(x)
    LINES
    loss = F.cross_entropy(out, y) + 0.1 * term
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("shown", loss.item())
"""
BY_CLASS = {
    "index_add": "term = torch.zeros(classes, 3).index_add(0, y, out).pow(2).mean()",
    "in place": "sums = torch.zeros((3, 3))\n    sums.index_add_(0, y, out)\n    term = sums.abs().mean()",
    "scatter_add": "term = torch.zeros(3, 3).scatter_add(0, y[:, None].expand(-1, 3), out).pow(2).mean()",
    "means": "term = torch.zeros(3, 3).index_reduce(0, y, out, 'mean', include_self=False).pow(2).mean()",
    "divided": (
        "count = torch.bincount(y, minlength=classes).clamp(min=1)\n"
        "    term = (torch.zeros(3, 3).index_add(0, y, out) / count[:, None]).pow(2).mean()"
    ),
}
BY_SAMPLE = {
    "a place for each row": "term = torch.zeros(len(y), 3).index_add(0, torch.arange(len(y)), out).pow(2).mean()",
    "along the other axis": "term = torch.zeros(out.size(0), 3).scatter_add(1, y[:, None], out).pow(2).mean()",
}


@pytest.mark.parametrize("form", BY_CLASS)
def test_all_rows_are_added_up(form: str, tmp_path: Path) -> None:
    text = "\n".join(converted(tmp_path, SCRIPT.replace("LINES", BY_CLASS[form])))
    assert "out = rd.loss.batch_rows(model(x))" in text and "rd.loss.batch_rows(y)" in text


@pytest.mark.parametrize("form", BY_SAMPLE)
def test_rows_with_places_of_their_own_stay(form: str, tmp_path: Path) -> None:
    assert "batch_rows" not in "\n".join(converted(tmp_path, SCRIPT.replace("LINES", BY_SAMPLE[form])))


@pytest.mark.parametrize("form", ["index_add", "divided"])
def test_the_training_is_that_of_one_process(form: str, tmp_path: Path, launcher: Launcher) -> None:
    trains_as_one(tmp_path, SCRIPT.replace("LINES", BY_CLASS[form]), launcher, world_sizes=(2, 3), rel=1e-5)
