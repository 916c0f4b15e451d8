"""Whatever an optimizer changes gets gradients of all processes: in a model's wrapper, or by itself."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import converted

SCRIPT = """\
import itertools

import torch
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.alpha = nn.Linear(3, 3), nn.Parameter(torch.zeros(3))

    def forward(self, x):
        return self.layer(x) + self.alpha


torch.manual_seed(0)
loader = DataLoader(TensorDataset(torch.randn(16, 3)), 4, shuffle=True)
net = Net()
scale = {scale}
{optimizer}
for epoch in range(2):
    for (x,) in loader:
        optimizer.zero_grad()
        {loss}.backward()
        optimizer.step()
"""
GIVEN = {
    "list": "optimizer = optim.SGD([*net.parameters(), scale], lr=0.1)",
    "sum": "optimizer = optim.SGD(list(net.parameters()) + [scale], lr=0.1)",
    "group": "optimizer = optim.SGD([{'params': net.parameters()}, {'params': [scale], 'lr': 1.0}], lr=0.1)",
    "dict": "optimizer = optim.SGD([dict(params=net.parameters()), dict(params=scale)], lr=0.1)",
    "chain": "optimizer = optim.SGD(itertools.chain(net.parameters(), [scale]), lr=0.1)",
    "variable": "params = list(net.parameters())\nparams += [scale]\noptimizer = optim.SGD(params, lr=0.1)",
    "append": "params = list(net.parameters())\nparams.append(scale)\noptimizer = optim.SGD(params, lr=0.1)",
    "added": "optimizer = optim.SGD(net.parameters(), lr=0.1)\noptimizer.add_param_group({'params': [scale]})",
}


def lines_with(lines: list[str], word: str) -> list[str]:
    return [line for line in lines if word in line]


@pytest.mark.parametrize("given", GIVEN)
@pytest.mark.parametrize("scale", ["nn.Parameter(torch.zeros(1))", "torch.zeros(1, requires_grad=True)"])
def test_a_tensor_is_averaged_where_the_optimizer_gets_it(tmp_path: Path, given: str, scale: str) -> None:
    text = SCRIPT.format(scale=scale, optimizer=GIVEN[given], loss="(net(x) * scale.exp()).mean()")
    (line,) = lines_with(converted(tmp_path, text), "distribute_parameter")
    assert line.count("rd.model.distribute_parameter(scale)") == 1


def test_parameters_of_a_wrapped_model_are_left_to_the_wrapper(tmp_path: Path) -> None:
    optimizer = "optimizer = optim.SGD([{'params': net.layer.parameters()}, {'params': [net.alpha]}], lr=0.1)"
    loss = "(net(x).mean() + net.layer.weight.norm() + net.alpha.norm())"
    lines = converted(tmp_path, SCRIPT.format(scale="0.5", optimizer=optimizer, loss=loss))
    assert lines_with(lines, "net = rd.distribute_model(net)") and not lines_with(lines, "distribute_parameter")


def test_a_module_that_nothing_calls_is_averaged_by_its_parameters(tmp_path: Path) -> None:
    optimizer = "optimizer = optim.SGD([*net.parameters(), *scale.parameters()], lr=0.1)"
    text = SCRIPT.format(scale="nn.Embedding(4, 3)", optimizer=optimizer, loss="(net(x) - scale.weight[0]).mean()")
    assert lines_with(converted(tmp_path, text), "*map(rd.model.distribute_parameter, scale.parameters())")


LISTS = {
    "made longer": "params = list(net.parameters())\nif flag:\n    params += list(other.parameters())",
    "extended": "params = list(net.parameters())\nparams.extend(other.parameters())",
    "groups": "params = [{'params': net.parameters()}]\nparams.append({'params': other.parameters()})",
    "sum": "params = list(net.parameters()) + list(other.parameters())",
}


@pytest.mark.parametrize("made", LISTS)
def test_every_model_whose_parameters_are_put_into_the_list_is_wrapped(tmp_path: Path, made: str) -> None:
    optimizer = (
        f"flag = len('x') > 0\nother = Net() if flag else None\n{LISTS[made]}\noptimizer = optim.SGD(params, lr=0.1)"
    )
    lines = converted(tmp_path, SCRIPT.format(scale="0.5", optimizer=optimizer, loss="(net(x) + other(x)).mean()"))
    assert lines_with(lines, "net = rd.distribute_model(net)") and lines_with(
        lines, "other = rd.distribute_model(other)"
    )
