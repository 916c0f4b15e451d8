"""Figures are followed through what a settings file names: loaders with attributes, functions next to classes."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from convert.conversion import conversion

from retrofit.training import read_project
from retrofit.training.figures.figures import figures_of

PARTS = """\
import torch
from torch import nn
from torch.utils.data import DataLoader


class Net(nn.Linear):
    def __init__(self, inputs, outputs):
        super().__init__(inputs, outputs)


class Batches(DataLoader):
    def __init__(self, data, size):
        self.size = size
        super().__init__(data, size, shuffle=True)


class Sums:
    def __init__(self, name, weight):
        self.total = {name: 0.0}

    def update(self, name, value):
        self.total[name] += value


class Lasts:
    def __init__(self, name, weight):
        self.last = {}

    def update(self, name, value):
        self.last[name] = value


def accuracy(output, target):
    return (output.argmax(1) == target).float().mean().item()


def top_two(output, target):
    best = output.topk(2, dim=1)[1]
    return (best == target[:, None]).any(1).float().mean().item()


def spread(output, target):
    return output.std().item()
"""
SCRIPT = """\
import json

import torch
from torch import nn
from torch.utils.data import TensorDataset

import parts

with open("settings.json") as file:
    settings = json.load(file)
data = TensorDataset(torch.randn(25, 4), torch.randint(0, 3, (25,)))
loader = parts.Batches(data, 6)
model = getattr(parts, settings["model"])(4, 3)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
START


class Training:
    def __init__(self, loader):
        self.loader = loader

    def run(self):
        for number, (x, y) in enumerate(self.loader):
            optimizer.zero_grad()
            out = model(x)
            loss = criterion(out, y)
            loss.backward()
            optimizer.step()
            STEP
        END


training = Training(loader)
for epoch in range(2):
    training.run()
"""
NAMED = 'metric = getattr(parts, settings["metric"])'
METER = 'meter = getattr(parts, settings["meter"])("peak", 1)'
PEAK = 'meter.update("peak", out.max().item())'


def lines_of(folder: Path, start: str, step: str, end: str, without: str = "") -> tuple[list[str], list[str]]:
    """Return the lines of the converted script, and those of them that are listed; `without`: a function of parts."""
    script = SCRIPT.replace("START", start).replace("STEP", step).replace("END", end)
    parts = PARTS.partition(f"\n\n\ndef {without}(")[0] + "\n" if without else PARTS
    result = conversion(folder, script, parts=parts)
    assert not result.refusals
    (text,) = (file.text for file in result.files if file.path.name == "train.py")
    lines = [line.strip() for line in text.splitlines()]
    return lines, [lines[finding.place.line - 1] for finding in result.listed if finding.place.path == "train.py"]


@pytest.mark.parametrize(
    ("start", "step", "end", "listed"),
    [
        (NAMED, "value = metric(out, y)", "print(value)", "print(value)"),
        (NAMED, 'print("metric", metric(out, y))', "", 'print("metric", metric(out, y))'),
        (METER, PEAK, "print(meter.total)", "print(meter.total)"),
        (METER, PEAK, "print(meter.last)", "print(meter.last)"),
    ],
    ids=["kept_value", "function_next_to_classes", "first_of_two", "second_of_two"],
)
def test_what_differs_is_listed(start: str, step: str, end: str, listed: str, tmp_path: Path) -> None:
    lines, found = lines_of(tmp_path, start, step, end)
    assert found == [listed], lines


def test_a_loader_of_a_class_with_attributes_gives_batches(tmp_path: Path) -> None:
    (tmp_path / "parts.py").write_text(PARTS)
    (tmp_path / "train.py").write_text(
        SCRIPT.replace("START", "").replace("STEP", "print(out.max())").replace("END", "")
    )
    (shown,) = figures_of(read_project(tmp_path / "train.py")).shown
    assert [ast.unparse(value) for value in shown.values] == ["out.max()"]


def test_a_mean_of_one_of_several_functions_is_reduced(tmp_path: Path) -> None:
    lines, found = lines_of(tmp_path, NAMED, 'print("metric", metric(out, y))', "", without="spread")
    assert 'print("metric", rd.reduce_loss(metric(out, y)))' in lines
    assert not found
