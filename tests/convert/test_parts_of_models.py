"""What is not wrapped by itself: a part of a model, a copy for evaluation, a model that only an option makes."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import conversion, converted

HEAD = """\
import argparse

import torch
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--two", action="store_true")
parser.add_argument("--resume", action="store_true")
args = parser.parse_args()
loader = DataLoader(TensorDataset(torch.randn(8, 3), torch.randn(8, 1)), 4, shuffle=True)
"""
LOOP = """
for x, y in loader:
    optimizer.zero_grad()
    {loss}.backward()
    {clip}
    optimizer.step()
"""
NETS = """\
from torch import nn


class Pool(nn.Module):
    def __init__(self):
        super().__init__()
        self.p = nn.Parameter(nn.init.ones_(nn.Linear(1, 1).weight.data))

    def forward(self, x):
        return x * self.p


class Net(nn.Module):
    def __init__(self, features, pool):
        super().__init__()
        self.features = features
        self.pool = pool

    def trained(self):
        return (p for p in self.parameters() if p.requires_grad)

    def fuse(self):
        self.apply(lambda module: None)

    def forward(self, x):
        return run(x, self.features, self.pool)


def run(x, features, pool):
    return features(pool(x))


def build():
    pool = Pool()
    features = nn.Linear(3, 1)
    net = Net(features=features, pool=pool)
    return net
"""
BUILT = {
    "groups of the optimizer": "optimizer = optim.SGD([{'params': net.features.parameters()}, "
    "{'params': net.pool.parameters(), 'weight_decay': 0}], lr=0.1)",
    "all parameters": "optimizer = optim.SGD(net.parameters(), lr=0.1)",
    "parameters of a method": "optimizer = optim.SGD(net.trained(), lr=0.1)",
}


def wrapped(lines: list[str]) -> list[str]:
    return [line for line in lines if "distribute_model" in line]


@pytest.mark.parametrize("optimizer", BUILT)
def test_parts_that_a_factory_makes_for_a_model_are_not_wrapped(tmp_path: Path, optimizer: str) -> None:
    loss = LOOP.format(loss="(net(x) - y).pow(2).mean()", clip="nn.utils.clip_grad_norm_(net.trained(), 1.0)")
    script = f"{HEAD}from nets import build\n\nnet = build()\n{BUILT[optimizer]}\n{loss}"
    result = conversion(tmp_path, script, nets=NETS)
    assert not result.refusals
    lines = [line for file in result.files for line in file.text.splitlines()]
    assert wrapped(lines) == ["net = rd.distribute_model(net)"]


def test_parts_that_the_training_calls_itself_are_ways_into_the_model(tmp_path: Path) -> None:
    loss = LOOP.format(loss="(net.features(net.pool(x)) - y).pow(2).mean()", clip="")
    script = f"{HEAD}from nets import build\n\nnet = build()\n{BUILT['parameters of a method']}\n{loss}"
    result = conversion(tmp_path, script, nets=NETS)
    lines = [line for file in result.files for line in file.text.splitlines()]
    assert wrapped(lines) == ['net = rd.distribute_model(net, methods=["features", "pool"])']


def test_a_copy_that_only_looks_is_not_wrapped(tmp_path: Path) -> None:
    loss = LOOP.format(loss="(net(x) - y).pow(2).mean()", clip="look(net, x)")
    look = """
def look(net, x):
    copy = build()
    copy.load_state_dict(net.state_dict())
    copy.fuse()
    with torch.no_grad():
        print(copy(x).shape)
"""
    script = f"{HEAD}from nets import build\n{look}\nnet = build()\n{BUILT['parameters of a method']}\n{loss}"
    assert wrapped(converted(tmp_path, script, nets=NETS)) == ["net = rd.distribute_model(net)"]


HEADS = """
net = nn.Linear(3, 3)
{make}
if args.resume:
    net.load_state_dict(torch.load("net.pt"))
    if head_is_used:
        head.load_state_dict(torch.load("head.pt"))
"""
MADE = {
    "option": (
        "head_is_used = args.two\nif args.two:\n    head = nn.Linear(3, 1)\n"
        "    optimizer = optim.SGD([*net.parameters(), *head.parameters()], lr=0.1)\n"
        "else:\n    optimizer = optim.SGD(net.parameters(), lr=0.1)",
        "if args.two:",
    ),
    "option or nothing": (
        "head_is_used = args.two\nif args.two:\n    head = nn.Linear(3, 1)\nelse:\n    head = None\n"
        "optimizer = optim.SGD([*net.parameters(), *(head.parameters() if head else [])], lr=0.1)",
        "if head is not None:",
    ),
    "one of two kinds": (
        "head_is_used = args.two\nif args.two and args.resume:\n    if args.resume:\n        head = nn.Linear(3, 1)\n"
        "    else:\n        head = nn.Linear(3, 2)\n"
        "    optimizer = optim.SGD([*net.parameters(), *head.parameters()], lr=0.1)\n"
        "else:\n    optimizer = optim.SGD(net.parameters(), lr=0.1)",
        "if args.two and args.resume:",
    ),
}


@pytest.mark.parametrize("made", MADE)
def test_a_model_of_one_branch_is_wrapped_under_its_condition(tmp_path: Path, made: str) -> None:
    make, condition = MADE[made]
    loop = LOOP.format(loss="((head(net(x)) if head_is_used else net(x)) - y).pow(2).mean()", clip="")
    lines = converted(tmp_path, HEAD + HEADS.format(make=make) + loop)
    place = lines.index("head = rd.distribute_model(head)")
    assert lines[place - 1] == condition
    assert lines[lines.index("net = rd.distribute_model(net)") - 1] != condition


def test_a_model_that_every_branch_makes_is_wrapped_without_a_condition(tmp_path: Path) -> None:
    make = (
        "head_is_used = True\nif args.two:\n    head = nn.Linear(3, 1)\nelse:\n    head = nn.Linear(3, 2)\n"
        "optimizer = optim.SGD([*net.parameters(), *head.parameters()], lr=0.1)"
    )
    loop = LOOP.format(loss="(head(net(x)) - y).pow(2).mean()", clip="")
    lines = converted(tmp_path, HEAD + HEADS.format(make=make) + loop)
    assert not lines[lines.index("head = rd.distribute_model(head)") - 1].startswith("if ")


WITH_LOSS = """\
class WithLoss(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, x, y):
        return (self.net(x) - y).pow(2).mean()


def evaluate(net):
    with torch.no_grad():
        print(net(loader.dataset[0][0]))


"""
SEVERAL = {
    "DataParallel": "several, whole = nn.DataParallel(net), nn.DataParallel(WithLoss(net))",
    "two statements": "several = nn.DataParallel(net)\nwhole = nn.DataParallel(WithLoss(net))",
    "compiled": "several = net\nwhole = torch.compile(WithLoss(net))",
    "compiled in two steps": "with_loss = WithLoss(net)\nseveral = net\nwhole = torch.compile(with_loss)",
}


@pytest.mark.parametrize("several", SEVERAL)
def test_what_a_wrapper_runs_is_the_model_that_is_trained(tmp_path: Path, several: str) -> None:
    made = f"net = build()\n{SEVERAL[several]}\n{BUILT['all parameters']}\n"
    loop = LOOP.format(loss="whole(x, y).mean()", clip="") + "    evaluate(several)\n"
    lines = converted(tmp_path, f"{HEAD}from nets import build\n\n{WITH_LOSS}{made}{loop}", nets=NETS)
    assert wrapped(lines) == ["net = rd.distribute_model(net)"]
    assert lines.index("net = rd.distribute_model(net)") == lines.index("net = build()") + 1


DERIVED = """\
class Whole(nn.Module):
    def __init__(self, body):
        super().__init__()
        self.body, self.head = body, nn.Linear(4, 1)

    def forward(self, x):
        return self.head(self.body(x))

    def groups(self):
        return [{"params": self.body.parameters()}, {"params": self.head.parameters()}]


class Derived(Whole):
    pass


def make():
    return nn.Linear(3, 4)


def train(model: Whole, optimizer):
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()


def main():
    body = make()
    model = Derived(body)
    train(model, optim.SGD(model.groups(), lr=0.1))


main()
"""


def test_a_part_that_an_inherited_method_runs_is_not_wrapped(tmp_path: Path) -> None:
    lines = [line for line in converted(tmp_path, HEAD + DERIVED) if "distribute_model(" in line]
    assert lines == ["model = rd.distribute_model(model)"]


SOLVED = """\
import solvers


class Rate(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(3, 3)

    def forward(self, time, x):
        return self.net(x)


class Solver(nn.Module):
    def __init__(self, rate):
        super().__init__()
        self.rate = rate

    def forward(self, x, times):
        return solvers.odeint(self.rate, x, times)


class Model(nn.Module):
    def __init__(self, solver):
        super().__init__()
        self.solver = solver
        self.head = nn.Linear(3, 1)

    def loss(self, x, y):
        return nn.functional.mse_loss(self.head(self.solver(x, torch.linspace(0, 1, 3))[-1]), y)


def show(rate):
    print(rate(0, torch.ones(1, 3)))


rate = Rate()
model = Model(Solver(rate))
optimizer = optim.SGD([{"params": model.head.parameters()}, {"params": rate.parameters(), "lr": 0.2}], lr=0.1)
"""


def test_a_part_that_a_library_runs_in_a_method_of_the_model_is_not_wrapped(tmp_path: Path) -> None:
    shown = "with torch.no_grad():\n        show(model.solver.rate)"
    lines = converted(tmp_path, HEAD + SOLVED + LOOP.format(loss="model.loss(x, y)", clip=shown))
    assert [line for line in lines if "distribute_model" in line] == [
        'model = rd.distribute_model(model, methods=["loss"])'
    ]


def test_a_part_that_a_library_runs_outside_the_model_is_refused(tmp_path: Path) -> None:
    loss = "nn.functional.mse_loss(model.head(solvers.odeint(rate, x, 1)), y)"
    (refusal,) = conversion(tmp_path, HEAD + SOLVED + LOOP.format(loss=loss, clip="")).refusals
    assert "what runs it here cannot be followed" in refusal.refusal
