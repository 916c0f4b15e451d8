"""Counts of a step, over what may be the size of the batches that an object makes itself."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import conversion

SCRIPT = """\
import argparse
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import IterableDataset

parser = argparse.ArgumentParser()
parser.add_argument("--size", type=int, default=8)
args = parser.parse_args()


class Boxes(BASE):
    def __init__(self, x, y, size):
        self.x, self.y, self.size = x, y, size

    def __len__(self):
        return len(self.x)

    def __iter__(self):
        for i in range(0, len(self.x), self.size):
            yield self.x[i : i + self.size], self.y[i : i + self.size]


boxes = Boxes(torch.randn(32, 6), torch.arange(32) % 3, args.size)
model = nn.Linear(6, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in iter(boxes):
    out = model(x)
    loss = F.cross_entropy(out, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    correct = out.argmax(1).eq(y).sum()
    print(loss.item(), SHOWN)
"""


def _shown(folder: Path, shown: str, base: str = "IterableDataset") -> tuple[str, bool]:
    """Return the line that shows a figure, and whether it is listed as that of one rank."""
    result = conversion(folder, SCRIPT.replace("BASE", base).replace("SHOWN", shown))
    assert not result.refusals
    lines = [line.strip() for line in result.files[0].text.splitlines()]
    (line,) = [line for line in lines if line.startswith("print(")]
    return line, line in [lines[finding.place.line - 1] for finding in result.listed]


@pytest.mark.parametrize("base", ["IterableDataset", "object"])
@pytest.mark.parametrize("size", ["args.size", "float(args.size)", "8", "boxes.size", "(args.size * 1.0)"])
def test_a_count_over_a_size_that_the_batches_do_not_tell_is_listed(tmp_path: Path, size: str, base: str) -> None:
    line, is_listed = _shown(tmp_path, f"correct.item() / {size}", base)
    assert is_listed
    assert line == f"print(rd.reduce_loss(loss).item(), correct.item() / {size})"


@pytest.mark.parametrize("shown", ["correct.item()", "correct.item() / len(boxes)", "correct.item() / 1000"])
def test_other_counts_are_those_of_all_ranks(tmp_path: Path, shown: str) -> None:
    line, is_listed = _shown(tmp_path, shown)
    assert not is_listed
    assert "rd.reduce_total(correct" in line
