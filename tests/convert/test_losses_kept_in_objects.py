"""Losses on their way through containers and objects: which of them are sums over the batch, or couple its samples."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import add_runtime, converted
from verify.projects.launch import Launcher

from retrofit.convert.plan import plan_conversion
from retrofit.training import read_project

HEAD = """\
import collections
import dataclasses
import types
import typing

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

Losses = collections.namedtuple("Losses", "fit other")


class Pair(typing.NamedTuple):
    fit: torch.Tensor
    other: int = 0


@dataclasses.dataclass
class Record:
    fit: torch.Tensor

    def doubled(self):
        return self.fit * 2


class Empty:
    pass


class Total:
    def __init__(self):
        self.value = 0


def root(a, b, weights):
    return torch.sqrt(torch.sum((a - b) ** 2 * weights) / (torch.sum(weights) + 1e-9))


def put(losses, name, value):
    losses[name] = value


def add(losses, value):
    losses["sum"] += value


def append(values, value):
    values.append(value)


def keep(holder, value):
    holder.fit = value


torch.manual_seed(0)
data = TensorDataset(torch.randn(24, 3), torch.rand(24, 3) * torch.rand(24, 1))
loader = DataLoader(data, batch_size=6)
net = nn.Linear(3, 3)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for inputs, weights in loader:
    losses = {"fit": root(net(inputs), inputs, weights)}
"""
TAIL = """\
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(loss.item())
"""
FORMS = {
    "an entry is added to": [
        "losses['all'] = torch.zeros(())",
        "losses['all'] += losses['fit']",
        "loss = losses['all']",
    ],
    "an entry of a list is added to": ["parts = [0.0]", "parts[0] += losses['fit']", "loss = parts[0]"],
    "a place of a tensor is added to": ["sums = torch.zeros(2)", "sums[0] += losses['fit']", "loss = sums.sum()"],
    "entries of a dict that makes them": [
        "sums = collections.defaultdict(float)",
        "for name, value in losses.items():",
        "    sums[name] += value",
        "loss = sums['fit']",
    ],
    "got or zero": [
        "sums = {}",
        "for name, value in losses.items():",
        "    sums[name] = sums.get(name, 0) + value",
        "loss = sums['fit']",
    ],
    "scaled in a comprehension": ["scaled = {k: v * 2 for k, v in losses.items()}", "loss = scaled['fit']"],
    "some of the items": ["loss = sum(v for k, v in losses.items() if k != 'weight')"],
    "items in a loop": ["loss = 0", "for name, value in losses.items():", "    loss += value * 2"],
    "values in a loop": ["loss = 0", "for value in losses.values():", "    loss += value"],
    "items that are counted": ["loss = 0", "for i, (k, v) in enumerate(losses.items()):", "    loss += v"],
    "filled by a function": ["put(losses, 'late', root(net(inputs), inputs, weights))", "loss = losses['late']"],
    "filled by a function of a function": [
        "def put_through(held, value):",
        "    put(held, 'late', value)",
        "put_through(losses, root(net(inputs), inputs, weights))",
        "loss = losses['late']",
    ],
    "added to by a function": ["losses['sum'] = 0", "add(losses, losses['fit'])", "loss = losses['sum']"],
    "appended by a function": ["values = []", "append(values, losses['fit'])", "loss = sum(values)"],
    "attribute of a namespace": ["kept = types.SimpleNamespace(fit=losses['fit'])", "loss = kept.fit"],
    "attribute set later": ["kept = types.SimpleNamespace()", "kept.fit = losses['fit']", "loss = kept.fit"],
    "attribute set by a function": ["kept = Empty()", "keep(kept, losses['fit'])", "loss = kept.fit"],
    "attribute added to": ["kept = types.SimpleNamespace(all=0)", "kept.all += losses['fit']", "loss = kept.all"],
    "attribute of an own object added to": ["kept = Total()", "kept.value += losses['fit']", "loss = kept.value"],
    "field of a dataclass": ["loss = Record(losses['fit']).fit"],
    "field in a method": ["loss = Record(fit=losses['fit']).doubled()"],
    "field of a named tuple": ["loss = Losses(losses['fit'], 1).fit"],
    "field of a class of named tuples": ["loss = Pair(losses['fit']).fit"],
    "named tuple taken apart": ["loss, _ = Losses(losses['fit'], 1)"],
    "place in a named tuple": ["loss = Losses(losses['fit'], 1)[0]"],
}


def script(form: str) -> str:
    return HEAD + "".join(f"    {line}\n" for line in FORMS[form]) + TAIL


@pytest.mark.parametrize("form", FORMS)
def test_a_coupled_loss_is_found_through_what_holds_it(form: str, tmp_path: Path) -> None:
    lines = converted(tmp_path, script(form))
    sums = "rd.loss.batch_sum(torch.sum((a - b) ** 2 * weights)) / (rd.loss.batch_sum(torch.sum(weights)) + 1e-9)"
    assert f"return torch.sqrt({sums})" in lines


@pytest.mark.parametrize("form", FORMS)
def test_a_sum_is_found_through_what_holds_it(form: str, tmp_path: Path) -> None:
    summed = script(form).replace("torch.sqrt(torch.sum(", "(torch.sum(").replace(" / (torch.sum(weights) + 1e-9)", "")
    assert "rd.loss.sum_loss(loss).backward()" in converted(tmp_path, summed)


OF_MODEL = """\
class Imputer(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, inputs, weights):
        out = self.layer(inputs)
        found = {"out": out, "fit_loss": root(out, inputs, weights)}
        for key in found:
            found[key] = found[key] if found[key].dim() < 1 else found[key].flip(1)
        return found


net = Imputer()
"""


def test_a_loss_next_to_the_outputs_of_a_model_is_the_loss(tmp_path: Path) -> None:
    made, called = '{"fit": root(net(inputs), inputs, weights)}', "net(inputs, weights)"
    text = HEAD.replace("net = nn.Linear(3, 3)\n", OF_MODEL).replace(made, called)
    whole = ["losses['whole_loss'] = 0.0", "losses['whole_loss'] += losses['fit_loss']", "loss = losses['whole_loss']"]
    lines = converted(tmp_path, text + "".join(f"    {line}\n" for line in whole) + TAIL)
    assert any("rd.loss.batch_sum(torch.sum(weights))" in line for line in lines)


@pytest.mark.parametrize("world_size", [1, 2])
def test_the_training_is_that_of_one_process(world_size: int, tmp_path: Path, launcher: Launcher) -> None:
    """All forms in one loss."""
    terms = [line for form in FORMS for line in [*FORMS[form], "whole = whole + loss"]]
    text = HEAD + "".join(f"    {line}\n" for line in ["whole = 0", *terms, "loss = whole"]) + TAIL
    result = converted(tmp_path, text)
    assert "rd.loss.batch_sum" in "".join(result)
    (changed,) = plan_conversion(read_project(tmp_path / "train.py")).files
    (tmp_path / "changed.py").write_text(changed.text)
    add_runtime(tmp_path)
    alone = launcher.run(tmp_path, "train.py", [])
    together = launcher.run(tmp_path, "changed.py", [], world_size=world_size, RETROFIT_BATCH="global")
    assert {*alone["statuses"], *together["statuses"]} == {0}, together["outputs"]
    expected, found = ([float(line) for line in run["outputs"][0].splitlines()[-4:]] for run in (alone, together))
    assert found == pytest.approx(expected, rel=1e-5)
