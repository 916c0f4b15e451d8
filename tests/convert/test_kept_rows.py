"""Rows that a layer makes for the batch size and keeps: as many of them are read as the batch in hand has."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import conversion

SCRIPT = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Lift(nn.Module):
    def __init__(self, rows):
        super().__init__()
        {made}

    def forward(self, x):
        return {read}


size = 4
loader = DataLoader(TensorDataset(torch.randn(16, 3)), batch_size=size, drop_last=True)
lift, model = Lift(size), nn.Linear(3, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for (x,) in loader:
    optimizer.zero_grad()
    lift(model(x)).pow(2).mean().backward()
    optimizer.step()
with torch.no_grad():
    print(lift(model(torch.randn(size, 3))).sum())
"""
CUT = "self.ones[:rd.data.own_batch_size(len(self.ones), x)]"
SAME = {
    "plain": ("self.ones = torch.ones(rows, 1)", "x + self.ones"),
    "size as a tuple": ("self.ones = torch.full((rows, 1), 2.0)", "x * self.ones"),
    "parameter": ("self.ones = nn.Parameter(torch.ones(rows, 1), requires_grad=False)", "torch.cat([x, self.ones], 1)"),
    "buffer": ("self.register_buffer('ones', torch.zeros(rows, 1) + 1)", "x + self.ones.to(x.device)"),
    "repeated": ("self.ones = torch.arange(3.0).unsqueeze(0).repeat(rows, 1)", "x + self.ones"),
    "by a variable": ("ones = torch.ones(rows, 1).float()\n        self.ones = 2 * ones", "x + self.ones"),
    "joined": ("self.ones = torch.cat([torch.ones(rows, 1), torch.zeros(rows, 2)], dim=1)", "x + self.ones"),
}
OTHER = {
    "drawn": ("self.ones = torch.randn(rows, 1)", "x + self.ones"),
    "samples in another dimension": ("self.ones = torch.ones(2, rows, 3)", "x + self.ones"),
    "joined along the samples": ("self.ones = torch.cat([torch.ones(rows, 3), torch.ones(1, 3)])", "x + self.ones[:4]"),
    "only a figure": ("self.ones = torch.ones(rows, 3).sum()", "x + self.ones"),
    "places": ("self.ones = torch.arange(rows).repeat(3, 1).t()", "x + self.ones"),
    "set again": ("self.ones = torch.ones(rows, 3)\n        self.shown = self.ones.mean()", "x + self.ones"),
}


@pytest.mark.parametrize("form", SAME)
def test_rows_that_are_all_the_same_are_cut_where_they_are_read(tmp_path: Path, form: str) -> None:
    made, read = SAME[form]
    result = conversion(tmp_path, SCRIPT.format(made=made, read=read))
    assert read.replace("self.ones", CUT) in result.files[0].text
    assert made in result.files[0].text
    assert all(finding.edits for finding in result.findings if finding.code == "RF112")


@pytest.mark.parametrize("form", OTHER)
def test_other_rows_are_left_as_they_are(tmp_path: Path, form: str) -> None:
    made, read = OTHER[form]
    assert CUT not in conversion(tmp_path, SCRIPT.format(made=made, read=read)).files[0].text


def test_rows_that_are_read_from_outside_are_listed(tmp_path: Path) -> None:
    made, read = SAME["plain"]
    script = SCRIPT.format(made=made, read=read) + "    print(lift.ones.sum())\n"
    result = conversion(tmp_path, script)
    assert CUT not in result.files[0].text
