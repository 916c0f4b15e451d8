"""Tables that a training counts in by the labels of its samples are of one rank's samples, and listed."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import conversion

SCRIPT = """\
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

inputs = torch.randn(25, 4)
loader = DataLoader(TensorDataset(inputs, (inputs.sum(1) > 0).long()), batch_size=8)
model = nn.Linear(4, 2)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
counts = np.zeros((2, 2), dtype=int)
for x, y in loader:
    out = model(x)
    loss = criterion(out, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    guess = out.argmax(1)
    STEP
print(counts)
"""


@pytest.mark.parametrize(
    "step",
    [
        "for a, b in zip(y.numpy(), guess.numpy()):\n        counts[a, b] += 1",
        "for a, b in zip(y.tolist(), guess.tolist()):\n        counts[a][b] += 1",
        "for a, b in zip(y.view(-1), guess.view(-1)):\n        counts[a, b] = counts[a, b] + 1",
        "for index in range(len(y)):\n        counts[y[index], guess[index]] += 1",
        "for index, a in enumerate(y):\n        counts[int(a), guess[index].item()] += 1",
        "for a in y:\n        counts[0, int(a)] += 1",
        "for a in y:\n        counts[int(a), 0] = 1",
    ],
)
def test_a_table_of_counts_by_label_is_listed(step: str, tmp_path: Path) -> None:
    result = conversion(tmp_path, SCRIPT.replace("STEP", step))
    assert not result.refusals
    assert [finding.message for finding in result.listed] == ["rank 0's share: counts, is printed"]


def test_what_labels_choose_in_a_fixed_table_is_of_the_batch(tmp_path: Path) -> None:
    script = SCRIPT.replace("STEP", "print(counts[y.numpy(), 0].max())").replace("print(counts)\n", "")
    (finding,) = conversion(tmp_path, script).listed
    assert finding.message == "rank 0's share: counts[y.numpy(), 0].max(), is printed"


def test_a_table_by_the_number_of_the_epoch_is_not(tmp_path: Path) -> None:
    script = SCRIPT.replace("STEP", "counts[0, 1] += 1").replace("print(counts)\n", "print(counts[0, 1])\n")
    assert not conversion(tmp_path, script).listed


@pytest.mark.parametrize(
    "step",
    ["totals.index_add_(0, y, out)", "totals.scatter_add_(0, y[:, None], out)", "totals[0].copy_(out.max())"],
)
def test_a_tensor_that_is_changed_in_place_is_listed(step: str, tmp_path: Path) -> None:
    script = SCRIPT.replace("counts = np.zeros((2, 2), dtype=int)", "totals = torch.zeros(2, 2)")
    result = conversion(tmp_path, script.replace("STEP", step).replace("print(counts)", "print(totals)"))
    assert [finding.message for finding in result.listed] == ["rank 0's share: totals, is printed"]


def test_a_count_that_is_added_in_place_is_of_all_processes(tmp_path: Path) -> None:
    script = SCRIPT.replace("counts = np.zeros((2, 2), dtype=int)", "hits = torch.zeros(1)")
    script = script.replace("STEP", "hits.add_((guess == y).sum())").replace("print(counts)", "print(hits)")
    result = conversion(tmp_path, script)
    assert "    hits.add_(rd.reduce_total((guess == y).sum()))\n" in result.files[0].text and not result.listed
