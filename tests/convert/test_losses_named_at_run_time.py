"""Losses that are taken by a name which only a run knows, where nothing says what they are: they are listed."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import conversion

SCRIPT = """\
import argparse
import functools
import importlib
import json
import operator
import pydoc
import sys

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import metrics
import somewhere

parser = argparse.ArgumentParser()
parser.add_argument("--kind", required=True)
parser.add_argument("--by", choices=["total"], default="total")
args = parser.parse_args()
read = json.load(open("settings.json"))


def total(output, target):
    return F.cross_entropy(output, target, reduction="sum")


class Kept:
    @staticmethod
    def total(output, target):
        return F.cross_entropy(output, target, reduction="sum")


loader = DataLoader(TensorDataset(torch.randn(64, 4), torch.randint(0, 3, (64,))), batch_size=8, shuffle=True)
model = nn.Linear(4, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
f = CHOSEN
for x, y in loader:
    out = model(x)
    result = COMPUTED
    optimizer.zero_grad()
    result.backward()
    optimizer.step()
"""
METRICS = "import torch.nn.functional as F\n\n\ndef mean(output, target):\n    return F.cross_entropy(output, target)\n"
UNKNOWN = [
    "globals()[args.kind]",
    "globals().get(args.kind)",
    "eval(args.kind)",
    "getattr(sys.modules[__name__], args.kind)",
    "getattr(Kept, args.kind)",
    "vars(Kept)[args.kind]",
    "importlib.import_module(read['module']).compute",
    "pydoc.locate(args.kind)",
    "operator.attrgetter(args.kind)(somewhere)",
    "getattr(somewhere, read['kind'])",
    "getattr(nn, read['kind'])(**read['options'])",
    "getattr(nn, read['kind'])(reduction=read['by'])",
    "functools.partial(getattr(F, read['kind']), **read['options'])",
]
KNOWN = [
    "getattr(nn, args.kind)()",
    "getattr(F, read['kind'])",
    "getattr(metrics, args.kind)",
    "{'mean': metrics.mean, 'total': total}[args.kind]",
    "getattr(nn, 'CrossEntropyLoss')(**read['options'])",
    "somewhere.compute",
    "total",
]
SAID = "gets its name in the run"


def named(folder: Path, chosen: str, computed: str = "f(out, y)") -> list[int]:
    result = conversion(folder, SCRIPT.replace("CHOSEN", chosen).replace("COMPUTED", computed), metrics=METRICS)
    assert not result.refusals
    return [finding.place.line for finding in result.findings if SAID in finding.message]


@pytest.mark.parametrize("chosen", UNKNOWN)
def test_what_nothing_is_known_of_is_listed(chosen: str, tmp_path: Path) -> None:
    line = next(n for n, text in enumerate(SCRIPT.splitlines(), 1) if "COMPUTED" in text)
    assert named(tmp_path, chosen) == [line]


def test_a_call_without_a_variable_and_a_term_are_listed(tmp_path: Path) -> None:
    assert named(tmp_path, "None", "getattr(somewhere, args.kind)(out, y)")
    assert named(tmp_path, "None", "F.cross_entropy(out, y) + 0.1 * getattr(out, args.kind)()")


@pytest.mark.parametrize("chosen", KNOWN)
def test_what_is_known_is_not(chosen: str, tmp_path: Path) -> None:
    assert not named(tmp_path, chosen)


def test_models_layers_and_options_by_name_are_not(tmp_path: Path) -> None:
    computed = "F.cross_entropy(f(out), y)"
    assert not named(tmp_path, "getattr(nn, read['layer'])(**read['options'])", computed)
    assert not named(tmp_path, "getattr(somewhere, read['layer'])", computed)
    assert not named(tmp_path, "getattr(args, 'kind')", "F.cross_entropy(out, y) * getattr(args, read['weight'])")
