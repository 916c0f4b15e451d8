"""Rows that a model puts at places, or chooses, by what the rest of the batch is: experts with a capacity."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import conversion

SCRIPT = """\
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.route, self.first, self.last = nn.Linear(4, 2), nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        chosen = self.route(x).argmax(-1)
        place = F.one_hot(chosen, 2).cumsum(0)[torch.arange(len(x)), chosen] - 1
        kept = place < len(x) // 2
        out = self.first(x)
        buffer = torch.zeros(len(x), 4)
        LINES


loader = DataLoader(TensorDataset(torch.randn(32, 4), torch.randn(32, 4)), 8)
model = Experts()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in loader:
    loss = F.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
COUPLED = {
    "chosen": "buffer[kept] = out[kept]\nreturn buffer",
    "chosen by numbers": "rows = torch.arange(len(x))[kept]\nbuffer[rows] = out[rows]\nreturn buffer + x",
    "scattered": "return buffer.scatter(0, place[:, None].expand(-1, 4), out)",
    "scattered in place": "buffer.scatter_(0, place[:, None].expand(-1, 4), out)\nreturn buffer",
    "added": "return buffer.index_add(0, torch.arange(len(x))[kept], out[kept])",
    "added in place": "rows = torch.arange(len(x))[kept]\nbuffer.index_add_(0, rows, out[rows])\nreturn buffer",
}
OF_EACH = {
    "by its own label": "return out + torch.zeros(len(x), 4).scatter(1, chosen[:, None], 1.0)",
    "by its own label in place": "buffer.scatter_(1, chosen[:, None], 1.0)\nreturn out + buffer",
    "by its own sign": "positive = out[:, 0] > 0\nbuffer[positive] = out[positive]\nreturn buffer",
}


def is_listed(tmp_path: Path, lines: str) -> bool:
    result = conversion(tmp_path, SCRIPT.replace("LINES", lines.replace("\n", "\n        ")))
    assert not result.refusals
    return any(finding.code == "RF309" and not finding.edits for finding in (*result.findings, *result.listed))


@pytest.mark.parametrize("form", COUPLED)
def test_places_that_depend_on_other_samples_are_listed(tmp_path: Path, form: str) -> None:
    assert is_listed(tmp_path, COUPLED[form])


@pytest.mark.parametrize("form", OF_EACH)
def test_places_of_each_sample_are_not(tmp_path: Path, form: str) -> None:
    assert not is_listed(tmp_path, OF_EACH[form])
