"""Figures that objects hold whose classes are derived from dict, list and other containers."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import conversion

SCRIPT = """\
from collections import Counter, OrderedDict, UserDict, defaultdict
from types import SimpleNamespace
from typing import Dict, NamedTuple, TypedDict

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

loader = DataLoader(TensorDataset(torch.randn(64, 4), torch.randint(0, 3, (64,))), batch_size=8, shuffle=True)
model = nn.Linear(4, 3)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


CLASS


for step, (x, y) in enumerate(loader):
    out = model(x)
    optimizer.zero_grad()
    loss = criterion(out, y)
    loss.backward()
    optimizer.step()
    hits = (out.argmax(1) == y).float().mean().item()
    SHOW
"""
EMPTY = "class Log({}):\n    pass"
OWN = "class Log(dict):\n    def __init__(self, values):\n        super().__init__(values)"
DERIVED = [
    (EMPTY.format("dict"), "print(Log({'hits': hits}))"),
    (EMPTY.format("dict"), "print(Log({'hits': hits})['hits'])"),
    (EMPTY.format("OrderedDict"), "print(Log([('hits', hits)]))"),
    (EMPTY.format("UserDict"), "print(Log({'hits': hits}))"),
    (EMPTY.format("Counter"), "print(Log({'hits': hits}))"),
    (EMPTY.format("list"), "print(Log([step, hits]))"),
    (EMPTY.format("tuple"), "print(Log((step, hits)))"),
    (EMPTY.format("Dict[str, float]"), "print(Log({'hits': hits}))"),
    (EMPTY.format("SimpleNamespace"), "print(Log(hits=hits))"),
    ("class Log(TypedDict):\n    hits: float", "print(Log(hits=hits))"),
    ("class Log(NamedTuple):\n    step: int\n    hits: float", "print(Log(step, hits))"),
    ("class Log(dict):\n    def show(self):\n        for name, value in self.items():\n            print(name, value)",
     "Log({'hits': hits}).show()"),
    (OWN, "print(Log({'hits': hits}))"),
    ("class Log(dict):\n    def __init__(self, *values, **more):\n        super().__init__(*values, **more)\n"
     "        self.__dict__ = self", "print(Log(hits=hits).hits)"),
    ("class Base(dict):\n    def __init__(self, values):\n        dict.__init__(self, values)\n\n\n"
     "class Log(Base):\n    pass", "print(Log({'hits': hits}))"),
]  # fmt: skip
OTHERS = [
    (EMPTY.format("dict"), "print(Log({'step': step}), Log(rate=0.1))"),
    (EMPTY.format("dict"), "print(Log({'step': step, 'hits': hits})['step'])"),
    ("class Log(NamedTuple):\n    step: int\n    hits: float", "print(Log(step, hits).step)"),
    (
        "class Log(dict):\n    def __init__(self, values):\n        super().__init__(values)",
        "print(Log({'step': step}))",
    ),
    (EMPTY.format("list"), "print(Log([step]))"),
]


@pytest.mark.parametrize(("made", "show"), DERIVED)
def test_what_is_held_is_that_of_all_ranks(made: str, show: str, tmp_path: Path) -> None:
    result = conversion(tmp_path, SCRIPT.replace("CLASS", made).replace("SHOW", show))
    assert not result.refusals and not result.listed
    assert "hits = rd.reduce_loss((out.argmax(1) == y).float().mean()).item()" in result.files[0].text


@pytest.mark.parametrize(("made", "show"), OTHERS)
def test_other_entries_are_not_reduced(made: str, show: str, tmp_path: Path) -> None:
    result = conversion(tmp_path, SCRIPT.replace("CLASS", made).replace("SHOW", show))
    assert not result.listed and "reduce_loss" not in result.files[0].text
