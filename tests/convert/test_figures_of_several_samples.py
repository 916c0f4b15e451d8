"""Figures for which the entries of all samples are needed at once: the distinct ones, the largest ones."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import conversion, converted
from convert.training_runs import trains_as_one
from verify.projects.launch import Launcher

SCRIPT = """\
from collections import Counter

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
loader = DataLoader(TensorDataset(torch.randn(44, 5).double(), torch.arange(44) % 3), batch_size=8)
model = nn.Linear(5, 3).double()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in loader:
    out = model(x)
    loss = F.cross_entropy(out, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    each = F.cross_entropy(out, y, reduction="none")
    found = out.argmax(1)
    LINES
"""
DISTINCT = [
    "print('shown', len(torch.unique(found)), found.unique().numel(), torch.unique(y).shape[0])",
    "print('shown', len(np.unique(found.numpy())), np.unique(y.numpy()).size)",
    "print('shown', len(set(found.tolist())))",
    "number = len(set(y.tolist()) | {9})\n    print('shown', number)",
    "counts = Counter(found.tolist())\n    print('shown', len(counts))",
]
LISTED = [
    "print(each.topk(2)[0].mean().item())",
    "print(torch.sort(each)[0][:2].mean().item())",
    "largest = out.max(1)[0]\n    print(largest.topk(2).values.sum().item())",
    "print(each.topk(max(1, int(0.75 * len(each))))[0].mean().item())",
    "print(torch.softmax(out, 0).max().item())",
    "print(out.cumsum(0)[-1].mean().item())",
    "print(F.normalize(out, dim=0).pow(2).mean().item())",
    "for label in torch.unique(y):\n        print((found[y == label] == label).sum().item())",
    "labels, numbers = torch.unique(found, return_counts=True)\n    print(numbers.max().item())",
]
PER_SAMPLE = {
    "print(out.topk(2)[0].mean().item())": "out.topk(2)[0].mean()",
    "print(out.sort(1)[0][:, -1].mean().item())": "out.sort(1)[0][:, -1].mean()",
    "print(torch.softmax(out, 1).topk(1)[0].mean().item())": "torch.softmax(out, 1).topk(1)[0].mean()",
    "print(F.normalize(out, dim=1).abs().mean().item())": "F.normalize(out, dim=1).abs().mean()",
}


KEPT = """\
def run(loader):
    kept = []
    for x, y in loader:
        out = model(x)
        loss = F.cross_entropy(out, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        kept.append(out.argmax(1))
    return NUMBER


print("shown", run(loader))
"""


@pytest.mark.parametrize("number", ["len(torch.unique(torch.cat(kept)))", "torch.cat(kept).unique().numel()"])
def test_so_are_those_of_a_list_that_is_kept(number: str, tmp_path: Path) -> None:
    text = "\n".join(converted(tmp_path, SCRIPT[: SCRIPT.index("for x")] + KEPT.replace("NUMBER", number)))
    assert "kept.append(rd.data.gather_batch(out.argmax(1)))" in text


@pytest.mark.parametrize("lines", DISTINCT)
def test_distinct_entries_are_those_of_all_ranks(lines: str, tmp_path: Path) -> None:
    text = "\n".join(converted(tmp_path, SCRIPT.replace("LINES", lines)))
    assert "rd.data.gather_batch(" in text and "rd.reduce_total(" not in text


def test_their_number_is_that_of_one_process(tmp_path: Path, launcher: Launcher) -> None:
    trains_as_one(tmp_path, SCRIPT.replace("LINES", "\n    ".join(DISTINCT)), launcher)


@pytest.mark.parametrize("lines", LISTED)
def test_what_compares_samples_is_listed(lines: str, tmp_path: Path) -> None:
    result = conversion(tmp_path, SCRIPT.replace("LINES", lines))
    assert not result.refusals and result.listed
    assert "rd.reduce_" not in result.files[0].text and "gather_batch" not in result.files[0].text


@pytest.mark.parametrize("lines", PER_SAMPLE)
def test_what_is_of_each_sample_is_reduced(lines: str, tmp_path: Path) -> None:
    text = "\n".join(converted(tmp_path, SCRIPT.replace("LINES", lines)))
    assert f"rd.reduce_loss({PER_SAMPLE[lines]}).item()" in text
