"""Criteria of torch that a script takes by a text: getattr(nn, "MSELoss"), nn.__dict__[name], eval("nn." + name)."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import converted

SCRIPT = """\
import argparse
import importlib
import json
import pydoc

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Settings:
    loss = "CrossEntropyLoss"
    options = {"ignore_index": 0}


def build(kind, **options):
    return getattr(nn, kind)(**options)


def loss_for(name, **options):
    return getattr(nn, name)(**options)


class Losses:
    def __init__(self, names):
        self.parts = [getattr(nn, name)() for name in names]

    def __call__(self, out, y):
        return sum([part(out, y) for part in self.parts])


parser = argparse.ArgumentParser()
parser.add_argument("--loss", default="CrossEntropyLoss")
args = parser.parse_args()
with open("settings.json") as file:
    read = json.load(file)
settings = Settings()
table = {"ce": "CrossEntropyLoss", "l1": "L1Loss"}
name = "CrossEntropyLoss"
loader = DataLoader(TensorDataset(torch.randn(16, 4), torch.randint(0, 3, (16,))), batch_size=4)
model = nn.Sequential(nn.Linear(4, 3), getattr(nn, read["layer"])())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
criterion = CHOSEN
for x, y in loader:
    loss = criterion(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
CHOSEN = {
    "getattr": 'getattr(nn, "CrossEntropyLoss")(ignore_index=0)',
    "dict of the module": 'nn.__dict__["CrossEntropyLoss"](ignore_index=0)',
    "vars": 'vars(nn)["CrossEntropyLoss"](ignore_index=0)',
    "evaluated class": 'eval("nn.CrossEntropyLoss")(ignore_index=0)',
    "evaluated call": 'eval(f"nn.{name}(ignore_index=0)")',
    "table of names": 'getattr(nn, table["ce"])(ignore_index=0)',
    "class of settings": "getattr(torch.nn, settings.loss)(**settings.options)",
    "option": "getattr(nn, args.loss)(ignore_index=0)",
    "imported module": 'getattr(importlib.import_module("torch.nn"), "CrossEntropyLoss")(ignore_index=0)',
    "located": 'pydoc.locate("torch.nn.CrossEntropyLoss")(ignore_index=0)',
    # of a file, which may name any loss: the runtime looks at what it is
    "key that says loss": 'getattr(nn, read["loss"])(**read["options"])',
    "options of losses": 'nn.__dict__[read["kind"]](ignore_index=0)',
}


def criterion_of(lines: list[str]) -> str:
    return next(line for line in lines if line.startswith("criterion = ")).removeprefix("criterion = ")


@pytest.mark.parametrize("chosen", CHOSEN)
def test_what_a_criterion_counts_is_that_of_all_ranks(tmp_path: Path, chosen: str) -> None:
    lines = converted(tmp_path, SCRIPT.replace("CHOSEN", CHOSEN[chosen]))
    assert criterion_of(lines) == f"rd.loss.distribute_criterion({CHOSEN[chosen]})"


@pytest.mark.parametrize("chosen", ['build("CrossEntropyLoss", ignore_index=0)', 'loss_for(read["x"], ignore_index=0)'])
def test_function_that_makes_a_criterion(tmp_path: Path, chosen: str) -> None:
    lines = converted(tmp_path, SCRIPT.replace("CHOSEN", chosen))
    assert any(line.startswith("return rd.loss.distribute_criterion(getattr(nn, ") for line in lines)


def test_function_of_a_loss(tmp_path: Path) -> None:
    script = SCRIPT.replace("CHOSEN", 'getattr(F, "cross_entropy")').replace(
        "(model(x), y)", "(model(x), y, ignore_index=0)"
    )
    lines = converted(tmp_path, script)
    assert "loss = rd.loss.distribute_criterion(criterion)(model(x), y, ignore_index=0)" in lines


def test_summed_loss(tmp_path: Path) -> None:
    lines = converted(tmp_path, SCRIPT.replace("CHOSEN", 'getattr(nn, table["ce"])(reduction="sum")'))
    assert "rd.loss.sum_loss(loss).backward()" in lines


def test_mean_over_all_stays(tmp_path: Path) -> None:
    lines = converted(tmp_path, SCRIPT.replace("CHOSEN", 'getattr(nn, "CrossEntropyLoss")()'))
    assert criterion_of(lines) == 'getattr(nn, "CrossEntropyLoss")()'


def test_losses_of_a_class_that_says_so(tmp_path: Path) -> None:
    lines = converted(tmp_path, SCRIPT.replace("CHOSEN", 'Losses(read["terms"])'))
    assert "loss.backward()" in lines and not any("sum_loss" in line for line in lines)
