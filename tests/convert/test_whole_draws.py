"""A generator of batches that training and evaluation share: the evaluation keeps its whole batches."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import conversion, converted

START = """\
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
X, Y = torch.rand(100, 4), torch.rand(100)
VX, VY = torch.rand(40, 4), torch.rand(40)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def batches(x, y, n):
    order = torch.randperm(len(x))
    for i in range(0, len(x), n):
        rows = order[i : i + n]
        yield x[rows], y[rows]


class Data:
    def __init__(self, x, y):
        self.x, self.y = x, y

    def batches(self, n):
        order = torch.randperm(len(self.x))
        for i in range(0, len(self.x), n):
            rows = order[i : i + n]
            yield self.x[rows], self.y[rows]


def evaluate(loss_of):
    kept = []
    with torch.no_grad():
        for EVALUATED:
            kept.append(model(x).squeeze(1) - y)
    return torch.cat(kept).abs().max().item()


best = 9.0
for epoch in range(3):
    for x, y in TRAINED:
        loss = F.mse_loss(model(x).squeeze(1), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    value = evaluate(None)
    if value < best:
        best = value
        torch.save(model.state_dict(), "best.pt")
    print(value)
"""


def script(trained: str, evaluated: str) -> str:
    return START.replace("TRAINED", trained).replace("EVALUATED", evaluated)


@pytest.mark.parametrize(
    ("trained", "evaluated", "expected"),
    [
        ("batches(X, Y, 8)", "x, y in batches(VX, VY, 8)", "x, y in rd.data.whole_batches(batches(VX, VY, 8))"),
        (
            "batches(X, Y, 8)",
            "i, (x, y) in enumerate(batches(VX, VY, 8))",
            "i, (x, y) in enumerate(rd.data.whole_batches(batches(VX, VY, 8)))",
        ),
        ("batches(X, Y, 8)", "x, y in batches(X, Y, 8)", "x, y in rd.data.whole_batches(batches(X, Y, 8))"),
        (
            "Data(X, Y).batches(8)",
            "x, y in Data(VX, VY).batches(8)",
            "x, y in rd.data.whole_batches(Data(VX, VY).batches(8))",
        ),
    ],
)
def test_an_evaluation_goes_through_whole_batches(tmp_path: Path, trained: str, evaluated: str, expected: str) -> None:
    lines = converted(tmp_path, script(trained, evaluated))
    assert f"for {expected}:" in lines
    assert f"for x, y in {trained}:" in lines
    assert any("rd.data.own_part(" in line for line in lines)


def test_its_figures_are_the_same_on_all_ranks(tmp_path: Path) -> None:
    result = conversion(tmp_path, script("batches(X, Y, 8)", "x, y in batches(VX, VY, 8)"))
    assert not [finding for finding in result.listed if "rank 0's share" in finding.message]


def test_a_generator_that_keeps_another_one_is_wrapped_where_the_evaluation_calls_it(tmp_path: Path) -> None:
    outer = "def doubled(x, y, n):\n    for a, b in batches(x, y, n):\n        yield 2 * a, b\n\n\nclass Data:"
    text = script("doubled(X, Y, 8)", "x, y in doubled(VX, VY, 8)").replace("class Data:", outer, 1)
    lines = converted(tmp_path, text)
    assert "for x, y in rd.data.whole_batches(doubled(VX, VY, 8)):" in lines
    assert "for a, b in batches(x, y, n):" in lines and "for x, y in doubled(X, Y, 8):" in lines
