"""Losses that a script takes from a registry: what decorators of the project store is followed."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import conversion, converted

START = """\
import sys

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


"""
LOSS = """\
class Contrast(nn.Module):
    def forward(self, z, y):
        return F.cross_entropy(z @ z.t(), torch.arange(len(z)))
"""
END = """\


torch.manual_seed(0)
model = nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(TensorDataset(torch.randn(32, 4), torch.randint(0, 3, (32,))), batch_size=8, shuffle=True)
for x, y in loader:
    optimizer.zero_grad()
    criterion(model(x), y).backward()
    optimizer.step()
"""
REGISTRIES = {
    "decorator with a name": """\
LOSSES = {}


def register(name):
    def deco(cls):
        LOSSES[name] = cls
        return cls

    return deco


@register("contrast")
LOSS

criterion = LOSSES["contrast"]()
""",
    "object with a method": """\
class Registry:
    def __init__(self, name):
        self.name, self._modules = name, {}

    def register(self, name=None):
        def deco(cls):
            self._modules[name or cls.__name__] = cls
            return cls

        return deco

    def build(self, name, **settings):
        return self._modules[name](**settings)


LOSSES = Registry("losses")


@LOSSES.register()
LOSS

criterion = LOSSES.build("Contrast")
""",
    "functions": """\
LOSSES = {}


def register(function):
    LOSSES[function.__name__] = function
    return function


@register
def contrast(z, y):
    return F.cross_entropy(z @ z.t(), torch.arange(len(z)))


criterion = LOSSES["contrast"]
""",
    "get and two ways to register": """\
class Registry:
    def __init__(self, name):
        self._name, self._module_dict = name, {}

    def get(self, key):
        return self._module_dict.get(key)

    def _register_module(self, module, name=None):
        name = name or module.__name__
        self._module_dict[name] = module

    def register_module(self, name=None, module=None):
        if module is not None:
            self._register_module(module=module, name=name)
            return module

        def _register(module):
            self._register_module(module=module, name=name)
            return module

        return _register


LOSSES = Registry("losses")


@LOSSES.register_module()
LOSS

def build(cfg, registry):
    args = dict(cfg)
    kind = args.pop("type")
    return registry.get(kind)(**args)


criterion = build(dict(type="Contrast"), LOSSES)
""",
    "functions that build": """\
_ENTRYPOINTS = {}


def register_loss(fn):
    mod = sys.modules[fn.__module__]
    _ENTRYPOINTS[fn.__name__] = fn
    return fn


LOSS

@register_loss
def contrast(**kwargs):
    return Contrast(**kwargs)


def create(name, **kwargs):
    return _ENTRYPOINTS[name](**kwargs)


criterion = create("contrast")
""",
    "derived classes": """\
class Base(nn.Module):
    losses = {}

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        Base.losses[cls.__name__] = cls


class Contrast(Base):
    def forward(self, z, y):
        return F.cross_entropy(z @ z.t(), torch.arange(len(z)))


criterion = Base.losses["Contrast"]()
""",
}
TWO = """\
class Registry:
    def __init__(self):
        self.known = {}

    def register(self, cls):
        self.known[cls.__name__] = cls
        return cls

    def build(self, name):
        return self.known[name]()


OTHERS, LOSSES = Registry(), Registry()


@OTHERS.register
LOSS

@LOSSES.register
class Plain(nn.Module):
    def forward(self, z, y):
        return F.cross_entropy(z, y)


criterion = LOSSES.build(sys.argv[1])
"""


def is_seen(folder: Path, lines: str) -> bool:
    text = START + lines.replace("LOSS\n", LOSS) + END
    return any(finding.code == "RF303" for finding in conversion(folder, text).findings)


@pytest.mark.parametrize("name", REGISTRIES)
def test_a_registered_loss_that_compares_samples_is_seen(name: str, tmp_path: Path) -> None:
    assert is_seen(tmp_path, REGISTRIES[name])


def test_each_of_two_registries_has_what_is_registered_in_it(tmp_path: Path) -> None:
    assert not is_seen(tmp_path, TWO)
    assert is_seen(tmp_path, TWO.replace("OTHERS.register", "LOSSES.register"))


CHOSEN = """\
class TwoViews(nn.Module):
    def forward(self, features):
        b = features.size(0)
        rows = torch.cat(torch.unbind(features, dim=1), dim=0)
        logits = features[:, 0] @ rows.T
        return F.cross_entropy(logits, torch.arange(b) + b)


class Confident(nn.Module):
    def __init__(self, threshold):
        super().__init__()
        self.threshold = threshold

    def forward(self, weak, strong):
        mask = weak.softmax(1).max(1)[0] > self.threshold
        return F.cross_entropy(strong[mask], weak.argmax(1)[mask])


def build(name):
    if name == "views":
        return TwoViews()
    return Confident(0.9)


with open(sys.argv[1]) as stream:
    criterion = build(stream.read().strip())
"""


def test_a_call_runs_the_criteria_that_take_its_arguments(tmp_path: Path) -> None:
    text = START + CHOSEN + END.replace("criterion(model(x), y)", "criterion(model(x).view(len(x), 2, -1))")
    gathered = "criterion(rd.loss.batch_rows(model(x).view(len(x), 2, -1))).backward()"
    assert gathered in converted(tmp_path, text)


@pytest.mark.parametrize("table", ['{**sums, "mean": nn.MSELoss()}', "dict(**sums, mean=nn.MSELoss())"])
def test_a_loss_that_one_table_has_from_another_is_found(table: str, tmp_path: Path) -> None:
    """It is a sum, unlike the loss that is written in the table itself."""
    tables = f'sums = {{"sum": nn.CrossEntropyLoss(reduction="sum")}}\nlosses = {table}\ncriterion = losses["sum"]\n'
    assert "rd.loss.sum_loss(criterion(model(x), y)).backward()" in converted(tmp_path, START + tables + END)
