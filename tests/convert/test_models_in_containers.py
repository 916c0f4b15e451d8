"""Models in dicts, lists and the like: all of them are wrapped, in their places, after the last one is put there."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import converted

SCRIPT = """\
import argparse
import copy

import munch
import torch
from torch import nn, optim
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        return self.layer(x)

    def encode(self, x):
        return self.layer(x)


parser = argparse.ArgumentParser()
parser.add_argument("--pose", action="store_true")
args = parser.parse_args()
loader = DataLoader(TensorDataset(torch.randn(16, 4)), 4)
BUILT
for (x,) in loader:
    LOSS
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
PARAMETERS = "[{'params': net.parameters()} for net in NETS]"
SGD = "optimizer = optim.SGD(PARAMETERS, lr=0.1)"
OF_VALUES = SGD.replace("PARAMETERS", PARAMETERS.replace("NETS", "nets.values()"))
OF_LIST = SGD.replace("PARAMETERS", PARAMETERS.replace("NETS", "nets"))
STEP_BY_STEP = """\
nets = {}
nets["a"] = Net()
parameters = list(nets["a"].parameters())
if args.pose:
    nets["b"] = Net()
    parameters += list(nets["b"].parameters())
optimizer = optim.SGD(parameters, lr=0.1)
"""
APPENDED = """\
nets, parameters = [], []
for _ in range(3):
    net = Net()
    nets.append(net)
    parameters += list(net.parameters())
optimizer = optim.SGD(parameters, lr=0.1)
"""
WRAPPED = "nets = rd.model.distribute_models(nets)"
SHAPES = {
    "a dict": ('nets = {"a": Net(), "b": Net()}\n' + OF_VALUES, 'nets["b"](nets["a"](x)).mean()', OF_VALUES),
    "filled step by step": (STEP_BY_STEP, 'nets["a"](x).mean()', "optimizer = optim.SGD(parameters, lr=0.1)"),
    "a list": ("nets = [Net(), Net()]\n" + OF_LIST, "nets[1](nets[0](x)).mean()", OF_LIST),
    "an ensemble": ("nets = [Net() for _ in range(3)]\n" + OF_LIST, "sum(net(x).mean() for net in nets)", OF_LIST),
    "appended": (APPENDED, "sum(net(x).mean() for net in nets)", "optimizer = optim.SGD(parameters, lr=0.1)"),
    "a comprehension": (
        'nets = {name: Net() for name in "ab"}\n' + OF_VALUES,
        "sum(net(x).mean() for name, net in nets.items())",
        OF_VALUES,
    ),
    "torch's dict": (
        'nets = nn.ModuleDict({"a": Net(), "b": Net()})\noptimizer = optim.SGD(nets.parameters(), lr=0.1)',
        'nets["b"](nets["a"](x)).mean()',
        "optimizer = optim.SGD(nets.parameters(), lr=0.1)",
    ),
    "attributes": ("nets = munch.Munch(a=Net(), b=Net())\n" + OF_VALUES, "nets.b(nets.a(x)).mean()", OF_VALUES),
    "by a computed key": (
        'nets = {"a": Net(), "b": Net()}\n' + OF_VALUES,
        'sum(nets[name](x).mean() for name in ("a", "b"))',
        OF_VALUES,
    ),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_all_are_wrapped_after_the_last_one_is_there(shape: str, tmp_path: Path) -> None:
    built, loss, following = SHAPES[shape]
    lines = converted(tmp_path, SCRIPT.replace("BUILT", built).replace("LOSS", f"loss = {loss}"))
    assert [line for line in lines if "distribute_model" in line] == [WRAPPED]
    assert lines[lines.index(WRAPPED) + 1] == following.replace("lr=0.1", "lr=rd.scaled_lr(0.1)")


def test_methods_of_the_models_are_named(tmp_path: Path) -> None:
    built = 'nets = {"a": Net(), "b": Net()}\n' + OF_VALUES
    script = SCRIPT.replace("BUILT", built).replace("LOSS", 'loss = nets["b"](nets["a"].encode(x)).mean()')
    assert 'nets = rd.model.distribute_models(nets, methods=["encode"])' in converted(tmp_path, script)


@pytest.mark.parametrize("written", ['{"a": first, "b": second}', "[first, second]"])
def test_models_with_names_of_their_own_are_wrapped_by_these(written: str, tmp_path: Path) -> None:
    keys = ('"a"', '"b"') if "{" in written else (0, 1)
    built = (
        f"first, second = Net(), Net()\nnets = {written}\nparameters = [*first.parameters(), *second.parameters()]\n"
    )
    script = SCRIPT.replace("BUILT", built + "optimizer = optim.SGD(parameters, lr=0.1)")
    lines = converted(tmp_path, script.replace("LOSS", f"loss = nets[{keys[1]}](nets[{keys[0]}](x)).mean()"))
    wrapped = sorted(line for line in lines if "distribute_model" in line)
    assert wrapped in ([WRAPPED], ["first = rd.distribute_model(first)", "second = rd.distribute_model(second)"])


LOOPS = ["for net in (first, second):", "nets = [first, second]\nfor net in nets:"]


@pytest.mark.parametrize("loop", LOOPS)
def test_models_that_a_list_only_gives_to_the_optimizer_are_wrapped_by_their_names(loop: str, tmp_path: Path) -> None:
    built = f"first, second = Net(), Net()\nparameters = []\n{loop}\n    parameters += list(net.parameters())\n"
    built += "optimizer = optim.SGD(parameters, lr=0.1)"
    lines = converted(tmp_path, SCRIPT.replace("BUILT", built).replace("LOSS", "loss = second(first(x)).mean()"))
    wrapped = sorted(line for line in lines if "distribute_model" in line)
    assert wrapped == ["first = rd.distribute_model(first)", "second = rd.distribute_model(second)"]


TRAINER = """
class Trainer:
    def __init__(self):
        self.nets = {}
        self.build()
        self.optimizer = optim.SGD([p for net in self.nets.values() for p in net.parameters()], lr=0.1)

    def build(self):
        self.nets["a"] = Net()
        self.nets["b"] = Net()

    def run(self):
        for (x,) in loader:
            loss = self.nets["b"](self.nets["a"](x)).mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()


Trainer().run()
"""


def test_what_another_method_fills_is_wrapped_where_training_begins(tmp_path: Path) -> None:
    lines = converted(tmp_path, SCRIPT[: SCRIPT.index("BUILT")] + TRAINER)
    place = lines.index("self.nets = rd.model.distribute_models(self.nets)")
    assert lines[place + 1] == "for (x,) in loader:"


def test_a_name_that_holds_one_model_or_a_list_of_them_is_wrapped_either_way(tmp_path: Path) -> None:
    built = (
        "nets = Net()\nparameters = list(nets.parameters())\nif args.pose:\n    nets = []\n    for _ in range(2):\n"
        "        nets.append(Net())\n    parameters = [*nets[0].parameters(), *nets[1].parameters()]\n"
        "optimizer = optim.SGD(parameters, lr=0.1)"
    )
    for loss in (
        "loss = nets[1](nets[0](x)).mean() if args.pose else nets(x).mean()",
        "loss = nets(x).mean() if not args.pose else nets[1](nets[0](x)).mean()",
    ):
        lines = converted(tmp_path, SCRIPT.replace("BUILT", built).replace("LOSS", loss))
        assert "nets = rd.model.distribute_models(nets)" in lines
        assert not any("rd.distribute_model(nets)" in line for line in lines)


RUN = """
def run(x, net, query, scale=1.0):
    return query(x, net) * scale


def render(x, **options):
    return run(x, **options)


def build():
    net = Net()
    parameters = list(net.parameters())
    query = lambda inputs, function: torch.cat([function(part) for part in inputs.split(2)])
    optimizer = optim.SGD(params=parameters, lr=0.1)
    options = WRITTEN
    return options, parameters, optimizer


options, parameters, optimizer = build()
for (x,) in loader:
    loss = LOSS.mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


@pytest.mark.parametrize("written", ['{"net": net, "query": query, "scale": 2.0}', "dict(net=net, query=query)"])
@pytest.mark.parametrize("loss", ["run(x, **options)", "render(x, **options)", 'options["net"](x)'])
def test_a_model_among_the_options_that_a_function_returns(written: str, loss: str, tmp_path: Path) -> None:
    script = SCRIPT[: SCRIPT.index("BUILT")] + RUN.replace("WRITTEN", written).replace("LOSS", loss)
    (wrapped,) = [line for line in converted(tmp_path, script) if "distribute_model" in line]
    assert wrapped in ("options = rd.model.distribute_models(options)", "net = rd.distribute_model(net)")


NAMED = """
class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        net = Net()
        SET
        self.optimizer = optim.SGD(net.parameters(), lr=0.1)

    def process(self, x):
        return self.inner(x).mean()

    def backward(self, loss):
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()


pair = Pair()
for (x,) in loader:
    pair.backward(pair.process(x))
"""


@pytest.mark.parametrize(
    "statement", ['self.add_module("inner", net)', 'setattr(self, "inner", net)', 'self.register_module("inner", net)']
)
def test_a_model_that_gets_its_name_by_a_text(statement: str, tmp_path: Path) -> None:
    lines = converted(tmp_path, SCRIPT[: SCRIPT.index("BUILT")] + NAMED.replace("SET", statement))
    place = lines.index("net = rd.distribute_model(net)")
    assert lines[place - 1] == "net = Net()" and lines[place + 1] == statement


def test_a_model_is_wrapped_after_it_shares_its_weight(tmp_path: Path) -> None:
    built = (
        "encoder, decoder = nn.Linear(4, 4), nn.Linear(4, 4)\ndecoder.weight = encoder.weight\n"
        "optimizer = optim.SGD([*encoder.parameters(), decoder.bias], lr=0.1)"
    )
    lines = converted(tmp_path, SCRIPT.replace("BUILT", built).replace("LOSS", "loss = decoder(encoder(x)).mean()"))
    assert lines.index("decoder.weight = encoder.weight") < lines.index("decoder = rd.distribute_model(decoder)")


PAIRS = """
class First:
    def __init__(self):
        net = Net()
        if args.pose:
            net = nn.DataParallel(net)
        self.net, self.optimizer = net, optim.SGD(net.parameters(), lr=0.1)


class Second:
    def __init__(self):
        net = Net()
        if args.pose:
            net = nn.DataParallel(net)
        self.net, self.optimizer = net, optim.SGD(net.parameters(), lr=0.1)


first, second = First(), Second()
for (x,) in loader:
    loss = first.net(x).mean() + second.net(x).mean()
    loss.backward()
    first.optimizer.step()
    second.optimizer.step()
"""


def test_two_models_of_a_class_in_wrappers_are_both_wrapped(tmp_path: Path) -> None:
    lines = converted(tmp_path, SCRIPT[: SCRIPT.index("BUILT")] + PAIRS)
    assert lines.count("net = rd.distribute_model(net)") == 2


IN_TURN = """
models = [Net(), Net()]
optimizers = [optim.SGD(model.parameters(), lr=0.1) for model in models]
for epoch in range(4):
    model, optimizer = models[epoch % 2], optimizers[epoch % 2]
    for (x,) in loader:
        model(x).mean().backward()
        optimizer.step()
"""


def test_a_name_in_a_comprehension_is_another_variable(tmp_path: Path) -> None:
    lines = converted(tmp_path, SCRIPT[: SCRIPT.index("BUILT")] + IN_TURN)
    assert [line for line in lines if "distribute_model" in line] == ["models = rd.model.distribute_models(models)"], (
        "the model of the loop is one of the list, whatever a comprehension calls its own"
    )
