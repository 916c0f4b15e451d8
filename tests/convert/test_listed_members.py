"""A class that a program finds among all names of a module is the one that it makes and trains."""

from __future__ import annotations

from pathlib import Path

import pytest

from retrofit.convert.plan import Conversion, plan_conversion
from retrofit.training import read_project

BASE = """\
from abc import ABC, abstractmethod


class BaseModel(ABC):
    @abstractmethod
    def step(self, x):
        pass
"""
PLAIN = """\
import torch
from torch import nn
from models.base import BaseModel


class Other:
    def step(self, x):
        raise RuntimeError("not a model")


class PlainModel(BaseModel):
    def __init__(self):
        self.net = nn.Linear(3, 1)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)

    def step(self, x):
        loss = self.net(x).pow(2).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()
"""
TRAIN = """\
import argparse
import importlib
import inspect
import torch
from torch.utils.data import DataLoader
from models.base import BaseModel

parser = argparse.ArgumentParser()
parser.add_argument("--model", default="plain")
args = parser.parse_args()


def find(name):
    module = importlib.import_module("models." + name)
    found, wanted = None, name.replace("_", "") + "model"
    FIND
    return found


loader = DataLoader(torch.randn(16, 3), 4)
model = find(args.model)()
for x in loader:
    print(model.step(x))
"""
FORMS = [
    "for key, kind in module.__dict__.items():\n"
    "        if key.lower() == wanted.lower() and issubclass(kind, BaseModel):\n            found = kind",
    "for key, kind in vars(module).items():\n"
    "        if key.lower() == wanted.lower():\n            found = kind",
    "for kind in vars(module).values():\n"
    "        if inspect.isclass(kind) and issubclass(kind, BaseModel) and kind is not BaseModel:\n"
    "            found = kind",
    "for key, kind in vars(module).items():\n        if key == 'BaseModel' or not inspect.isclass(kind):\n"
    "            continue\n        if kind.__module__ == 'models.plain' and issubclass(kind, BaseModel):\n"
    "            found = kind",
    "for key, kind in inspect.getmembers(module, inspect.isclass):\n"
    "        if issubclass(kind, BaseModel):\n            found = kind",
    "found = [kind for key, kind in inspect.getmembers(module) if key.lower() == wanted][0]",
    "found = {key.lower(): kind for key, kind in vars(module).items()}[wanted]",
    "for key in dir(module):\n        if key.lower() == wanted:\n            found = getattr(module, key)",
]  # fmt: skip


def conversion(folder: Path, form: str, settings: str = "") -> Conversion:
    (folder / "models").mkdir()
    files = {"models/__init__.py": "", "models/base.py": BASE, "models/plain.py": PLAIN, "models/old.py": "x = 1\n"}
    for name, text in {**files, "train.py": settings + TRAIN.replace("FIND", form)}.items():
        (folder / name).write_text(text)
    return plan_conversion(read_project(folder / "train.py"))


@pytest.mark.parametrize("form", FORMS)
def test_the_class_that_is_found_is_followed(tmp_path: Path, form: str) -> None:
    result = conversion(tmp_path, form)
    assert not result.refusals
    changed = {file.source.name: file.text for file in result.files}
    assert "self.net = rd.distribute_model(self.net)" in changed["models/plain.py"]
    assert "loader = rd.distribute_loader(loader)" in changed["train.py"] and "models/base.py" not in changed


def test_a_text_that_is_computed_from_an_imported_one_of_its_name(tmp_path: Path) -> None:
    settings = "from settings import *\n\nchosen = chosen.lower()\n"
    form = "for key, kind in vars(module).items():\n        if key.lower() == chosen:\n            found = kind"
    assert not conversion(tmp_path, form, settings).refusals
