"""Figures that objects, sets and arguments hold, or that are reached by a text, are reduced or listed."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import conversion

SCRIPT = """\
from argparse import Namespace
from collections import Counter, defaultdict, namedtuple
from dataclasses import asdict, dataclass
from types import SimpleNamespace
from typing import NamedTuple

import pandas as pd
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

Losses = namedtuple("Losses", "fit size")


class Typed(NamedTuple):
    fit: torch.Tensor
    size: torch.Tensor


@dataclass
class Fields:
    fit: torch.Tensor
    size: torch.Tensor


class Table(dict):
    def __getattr__(self, name):
        return self[name]


class Board:
    def __init__(self):
        self.shown = {}

    def after_step(self, loss, out):
        self.shown["largest"] = out.max().item()

    def after_epoch(self, loss, out):
        print("board", self.shown)


def all_boards(boards, name, *given):
    for board in boards:
        getattr(board, name)(*given)


boards = [Board()]
data = TensorDataset(torch.randn(25, 4), torch.randint(0, 3, (25,)))
loader = DataLoader(data, 6)
model = nn.Linear(4, 3)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
START
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        out = model(x)
        loss = criterion(out, y)
        loss.backward()
        optimizer.step()
        size = out.pow(2).mean()
        STEP
    END
"""


def lines_of(folder: Path, start: str, step: str, end: str) -> tuple[list[str], list[str]]:
    """Return the lines of the converted script, and those of them that are listed."""
    script = SCRIPT.replace("START", start).replace("STEP", step.replace("\n", "\n        "))
    result = conversion(folder, script.replace("END", end))
    assert not result.refusals
    lines = [line.strip() for line in result.files[0].text.splitlines()]
    return lines, [lines[finding.place.line - 1] for finding in result.listed]


LISTED = {
    "the largest so far": ("best = torch.zeros(1)", "torch.maximum(best, out.max(), out=best)", "print(best)"),
    "a set's length": ("seen = set()", "seen.add(out.max().item())", "print(len(seen))"),
    "a set made in the loop": ("seen = {0}", "seen |= set(out.argmax(1).tolist())", "print(len(seen))"),
    "counts by label": ("n = defaultdict(int)", "for label in y.tolist():\n    n[label] += 1", "print(dict(n))"),
    "counts from zero": ("n = defaultdict(lambda: 0)", "for label in y.tolist():\n    n[label] += 1", "print(dict(n))"),
    "a counter": ("n = Counter()", "for label in y.tolist():\n    n[label] += 1", "print(n.most_common(1))"),
    "a row of a table": ("t = pd.DataFrame()", "t.loc[len(t)] = [epoch, out.max().item()]", "print(t['top'].max())"),
    "entries chosen one by one": (
        "kept = []",
        "for row in range(len(y)):\n    if out[row].max() > 0.2:\n        kept.append(row)",
        "print(len(kept))",
    ),
    "a dict of the project's": ("kept = Table()", "kept.update(top=out.max())", "print([v for v in kept.values()])"),
}

KEPT = """\
class Kept:
    def __init__(self):
        self.best = 0
    def __iter__(self):
        for part in range(2):
            yield self.best * part
kept = Kept()
"""
GOES_THROUGH = ("max(kept)", "list(kept)[-1]", "sum(kept)", "*kept", "torch.tensor([*kept])", "list(map(float, kept))")
LISTED |= {
    f"an object in {call}": (KEPT, "kept.best = max(kept.best, out.max().item())", f"print({call})")
    for call in GOES_THROUGH
}
LISTED["an object in a list"] = (
    f"{KEPT}shown = []",
    "kept.best = out.max().item()\nshown.extend(kept)",
    "print(shown[-1])",
)


@pytest.mark.parametrize("name", LISTED)
def test_what_one_rank_has_is_listed_where_it_is_shown(name: str, tmp_path: Path) -> None:
    _, listed = lines_of(tmp_path, *LISTED[name])
    assert listed == [LISTED[name][2]]


REDUCED = {
    "a sum with out=": (
        "total = torch.zeros(3)",
        "torch.add(total, out.detach().sum(0), out=total)",
        "print(total)",
        "torch.add(total, rd.reduce_total(out.detach().sum(0)), out=total)",
    ),
    "a named tuple": (
        "",
        "kept = Losses(loss, size)\nvalues = {k: v.item() for k, v in kept._asdict().items()}",
        "print(values)",
        "values = {k: rd.reduce_loss(v).item() for k, v in kept._asdict().items()}",
    ),
    "a class of named tuples": (
        "sums = [0.0, 0.0]",
        "kept = Typed(loss, size)\nsums[1] += kept._asdict()['size'].item()",
        "print(sums)",
        "sums[1] += rd.reduce_loss(kept._asdict()['size']).item()",
    ),
    "a namespace": (
        "total = 0.0",
        "kept = SimpleNamespace(fit=loss, size=size)\ntotal += kept.size.item()",
        "print(total)",
        "total += rd.reduce_loss(kept.size).item()",
    ),
    "a namespace's attributes": (
        "",
        "kept = Namespace(fit=loss, size=size)\nvalues = {k: float(v) for k, v in vars(kept).items()}",
        "print(values)",
        "values = {k: float(rd.reduce_loss(v)) for k, v in vars(kept).items()}",
    ),
    "a dataclass": (
        "",
        "values = {k: v.item() for k, v in asdict(Fields(loss, size)).items()}",
        "print(values)",
        "values = {k: rd.reduce_loss(v).item() for k, v in asdict(Fields(loss, size)).items()}",
    ),
    "attributes by their names": (
        "total = 0.0",
        "kept = Fields(loss, size)\nfor name in ('fit', 'size'):\n    total += getattr(kept, name).item()",
        "print(total)",
        "total += rd.reduce_loss(getattr(kept, name)).item()",
    ),
    "a dict of the project's": (
        "together = {}",
        "for key, value in Table(fit=loss.item(), size=size.item()).items():\n    together['G/' + key] = value",
        "print(' '.join('%s: %.4f' % (k, v) for k, v in together.items()))",
        "for key, value in Table(fit=rd.reduce_loss(loss).item(), size=rd.reduce_loss(size).item()).items():",
    ),
}


@pytest.mark.parametrize("name", REDUCED)
def test_means_and_sums_in_objects_are_reduced(name: str, tmp_path: Path) -> None:
    start, step, end, line = REDUCED[name]
    lines, listed = lines_of(tmp_path, start, step, end)
    assert line in lines and not listed


def test_methods_that_are_called_by_a_text_run(tmp_path: Path) -> None:
    step, end = "all_boards(boards, 'after_step', loss, out)", "all_boards(boards, 'after_epoch', loss, out)"
    lines, listed = lines_of(tmp_path, "", step, end)
    assert "from multigpu import print_main as print" in lines
    assert listed == ['print("board", self.shown)']


LABELS = """\
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Overlap(nn.Module):
    def forward(self, x, y):
        total = 0.0
        for k in range(x.size(1)):
            total += (x[:, k] * y[:, k]).sum(dim=1) / ((x[:, k] * y[:, k]).sum(dim=1) + x[:, k].sum(dim=1) + 1)
        return (1 - total / x.size(1)).mean()


class Meter:
    def __init__(self):
        self.sum, self.count, self.avg = np.zeros(3), 0, 0

    def update(self, outputs, labels):
        self.sum += Meter.of(outputs, labels)
        self.count += 1
        self.avg = self.sum / self.count

    @staticmethod
    def of(outputs, labels):
        found = []
        for k in range(labels.size()[1]):
            found.append((torch.sum(outputs[:, k] * labels[:, k]) / (torch.sum(labels[:, k]) + 1)).item())
        return np.asarray(found)


def one_hot(labels):
    n, length = labels.size()
    return torch.zeros(n, 3, length).scatter_(1, labels.view(n, 1, length), 1)


torch.manual_seed(0)
loader = DataLoader(TensorDataset(torch.randn(32, 3, 5), torch.randint(0, 3, (32, 5))), batch_size=8)
model = nn.Conv1d(3, 3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
overlap, meter = Overlap(), Meter()
for x, y in loader:
    y = one_hot(y)
    x, y = x.to("cpu"), y.to("cpu")
    out = model(x).softmax(1)
    loss = overlap(out, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    meter.update(out, y)
print(meter.avg)
"""


def test_labels_that_a_function_writes_out_are_not_averaged(tmp_path: Path) -> None:
    result = conversion(tmp_path, LABELS)
    text = "".join(file.text for file in result.files if file.path.name == "train.py")
    assert "meter.update(out, y)" in text
    assert "rd.reduce_loss" not in text
