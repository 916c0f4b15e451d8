"""A model that one branch builds and another one loads is wrapped after both, not in the function that builds it."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import conversion, converted

SCRIPT = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self, body):
        super().__init__()
        self.body = body
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        return self.head(self.body(x))


def build():
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    net = Net(net)
    return net


def other():
    net = nn.Linear(4, 4)
    net = Net(net)
    return net


def train(resume):
    loader = DataLoader(TensorDataset(torch.randn(16, 4), torch.rand(16, 2)), batch_size=4)
MAKE
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for x, y in loader:
        loss = nn.functional.mse_loss(CALLED(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


train(False)
"""
MAKE = {
    "loaded": """\
    if resume:
        net = torch.load("net.pt", weights_only=False)
    else:
        net = build()
""",
    "loaded later": """\
    net = build()
    if resume:
        net = torch.load("net.pt", weights_only=False)
""",
    "one line": '    net = torch.load("net.pt", weights_only=False) if resume else build()\n',
    "made here": """\
    if resume:
        net = Net(nn.Identity())
    else:
        net = build()
    net = net.to("cpu")
""",
}


@pytest.mark.parametrize("form", MAKE)
@pytest.mark.parametrize("called", ["net", "parallel"])
def test_it_is_wrapped_after_both(form: str, called: str, tmp_path: Path) -> None:
    parallel = "    parallel = nn.DataParallel(net)\n" if called == "parallel" else ""
    script = SCRIPT.replace("MAKE\n", MAKE[form] + parallel).replace("CALLED", called)
    text = conversion(tmp_path, script).files[0].text
    assert text.count("rd.distribute_model(") == 1
    name = "parallel" if parallel else "net"
    assert f"    {name} = rd.distribute_model({name})\n    optimizer" in text


def test_a_function_that_builds_all_of_them_wraps_them(tmp_path: Path) -> None:
    lines = converted(tmp_path, SCRIPT.replace("MAKE\n", "    net = build()\n").replace("CALLED", "net"))
    assert lines.count("net = rd.distribute_model(net)") == 1
