"""Regularizers that compare the rows of weights with each other: they are the same on every process."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import converted

SCRIPT = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


FUNCTION


torch.manual_seed(0)
loader = DataLoader(TensorDataset(torch.randn(32, 6), torch.randn(32, 1)), batch_size=8)
model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in loader:
    loss = (model(x) - y).square().mean() + orthogonal(model)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
PRODUCT = "(w @ w.t() - torch.eye(len(w))).square().mean()"
FORMS = {
    "layers": f"""\
def orthogonal(net):
    total = 0
    for layer in net.modules():
        if isinstance(layer, nn.Linear):
            w = layer.weight
            total = total + {PRODUCT}
    return total""",
    "named layers": f"""\
def orthogonal(net):
    weights = [layer.weight.flatten(1) for name, layer in net.named_modules() if name == "0"]
    return sum({PRODUCT} for w in weights)""",
    "parameters": f"""\
def orthogonal(net):
    total = 0
    for p in net.parameters():
        if p.dim() > 1:
            w = p.view(p.size(0), -1)
            total = total + {PRODUCT}
    return total""",
    "children, each by a function": f"""\
def of_layer(layer):
    w = layer.weight
    return {PRODUCT}


def orthogonal(net):
    return sum(of_layer(child) for child in net.children() if hasattr(child, "weight"))""",
    "parameters by their numbers": f"""\
def orthogonal(net):
    params, total = list(net.parameters()), 0
    for i in range(0, len(params), 2):
        w = params[i]
        total = total + {PRODUCT} + (params[i] @ params[i].t()).square().mean()
    return total""",
    "one parameter": f"""\
def orthogonal(net):
    params = list(net.parameters())
    w = params[0]
    return {PRODUCT} + (params[0] @ params[0].t()).square().mean()""",
    "one layer": f"""\
def orthogonal(net):
    w = net[0].weight
    return {PRODUCT}""",
    "one layer by its name": f"""\
def orthogonal(net):
    w = getattr(net[0], "weight")
    return {PRODUCT}""",
}


@pytest.mark.parametrize("form", FORMS)
def test_it_stays(tmp_path: Path, form: str) -> None:
    lines = converted(tmp_path, SCRIPT.replace("FUNCTION", FORMS[form]))
    assert not any("one_process_only" in line or "batch_rows" in line for line in lines)


def test_outputs_of_the_model_are_gathered(tmp_path: Path) -> None:
    function = f"def orthogonal(net):\n    w = net(x)\n    return {PRODUCT}"
    assert any("rd.loss.batch_rows" in line for line in converted(tmp_path, SCRIPT.replace("FUNCTION", function)))


def test_outputs_that_a_function_normalizes_are_gathered(tmp_path: Path) -> None:
    function = f"def orthogonal(net):\n    w = nn.functional.normalize(net(x))\n    return {PRODUCT}"
    assert any("rd.loss.batch_rows" in line for line in converted(tmp_path, SCRIPT.replace("FUNCTION", function)))
