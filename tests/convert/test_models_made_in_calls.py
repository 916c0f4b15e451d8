"""A model that is made in the call which hands it on is wrapped where the function gets it."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import conversion, converted

SCRIPT = """\
import copy

import torch
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.layer = nn.Linear(width, 1)

    def forward(self, x):
        return self.layer(x)


class Trainer:
    def __init__(self, model, loader):
        self.model, self.loader = model, loader
        self.averaged = copy.deepcopy(model)
        self.optimizer = optim.SGD(model.parameters(), lr=0.1)

    def fit(self):
        for x, y in self.loader:
            self.optimizer.zero_grad()
            nn.functional.mse_loss(self.model(x), y).backward()
            self.optimizer.step()


def build():
    return nn.Linear(4, 1)


def build_named():
    net = Net()
    return net


def make_optimizer(net):
    return optim.SGD(net.parameters(), lr=0.1)


def fit(model, loader, loss=None):
    optimizer = make_optimizer(model)
    for x, y in loader:
        optimizer.zero_grad()
        (loss or nn.functional.mse_loss)(model(x), y).backward()
        optimizer.step()
    return model


torch.manual_seed(0)
x = torch.randn(16, 4)
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), 4)
{line}
"""
LINES = {
    "a function": "net = fit(Net(), loader)",
    "by a keyword": "fit(loader=loader, model=Net().to('cpu'))",
    "layers of torch": "fit(nn.Sequential(nn.Linear(4, 1)), loader, nn.MSELoss())",
    "of a factory": "fit(build(), loader)",
    "of a factory with a name": "fit(build_named(), loader)",
    "a class": "Trainer(Net(), loader).fit()",
}


@pytest.mark.parametrize("kind", LINES)
def test_the_model_is_wrapped_where_a_function_gets_it(tmp_path: Path, kind: str) -> None:
    lines = [line.strip() for line in converted(tmp_path, SCRIPT.format(line=LINES[kind]))]
    wrapped = lines.index("model = rd.distribute_model(model)")
    function = "def __init__(self, model, loader):" if kind == "a class" else "def fit(model, loader, loss=None):"
    assert lines[wrapped - 1] == function
    assert sum("distribute_model(" in line for line in lines) == 1


def test_a_model_that_another_training_returns_is_wrapped_there(tmp_path: Path) -> None:
    probe = """
def pretrain():
    net = nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2), nn.Linear(2, 1))
    optimizer = optim.SGD(net.parameters(), lr=0.1)
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.mse_loss(net(x), y).backward()
        optimizer.step()
    return net


def probe(model):
    head = nn.Linear(1, 1)
    optimizer = optim.SGD(head.parameters(), lr=0.1)
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.mse_loss(head(model(x).detach()), y).backward()
        optimizer.step()


probe(pretrain())
"""
    lines = [line.strip() for line in converted(tmp_path, SCRIPT.format(line=probe))]
    assert [line for line in lines if "distribute_model(" in line] == [
        "net = rd.distribute_model(net)",
        "head = rd.distribute_model(head)",
    ]


SET_TO_EACH_OTHER = """\
import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--mode", default="train")
parser.add_argument("--resume", action="store_true")
args = parser.parse_args()


class Runner:
    def __init__(self, model, loader, optimizer=None):
        self.model, self.loader, self.optimizer = model, loader, optimizer

    def train(self):
        for x, y in self.loader:
            loss = nn.functional.cross_entropy(self.model(x), y)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()

    def test(self):
        with torch.no_grad():
            print(sum((self.model(x).argmax(1) == y).sum().item() for x, y in self.loader))


def load(model, optimizer):
    states = torch.load("last.pt")
    model.load_state_dict(states[0])
    optimizer.load_state_dict(states[1])
    return model, optimizer


def train(loader):
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if args.resume:
        model, optimizer = load(model, optimizer)
    train = Runner(model, loader, optimizer)
    for epoch in range(3):
        train.train()
        torch.save((model.state_dict(), optimizer.state_dict()), "last.pt")
    return model


def test(model, loader):
    test = Runner(model, loader)
    test.test()


loader = DataLoader(TensorDataset(torch.randn(22, 6), torch.randint(0, 3, (22,))), batch_size=4)
if args.mode != "test":
    model = train(loader)
if args.mode != "train":
    if args.mode == "test":
        model = nn.Linear(6, 3)
    model = load(model, torch.optim.SGD(model.parameters(), lr=0.1))[0]
    test(model, loader)
"""


def test_a_model_that_functions_hand_to_each_other_is_wrapped_once(tmp_path: Path) -> None:
    result = conversion(tmp_path, SET_TO_EACH_OTHER)
    assert not result.refusals
    assert result.files[0].text.count("rd.distribute_model(") == 1
    assert "    model = rd.distribute_model(model)\n    train = Runner(" in result.files[0].text


TWO_NAMES = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def forward(self, x):
        return self.layer(x)


def prepare():
    model = Net()
    MADE
    return model, trained


class Trainer:
    def __init__(self):
        self.loader = DataLoader(TensorDataset(torch.randn(64, 4), torch.randn(64, 1)), batch_size=8)
        self.model, self.trained = prepare()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def evaluate(self):
        self.model.eval()
        total = 0
        with torch.no_grad():
            for x, y in self.loader:
                total += (self.model(x) - y).pow(2).sum().item()
        return total

    def train(self):
        for epoch in range(2):
            for x, y in self.loader:
                loss = (self.trained(x) - y).pow(2).mean()
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
            print(self.evaluate())


Trainer().train()
"""


@pytest.mark.parametrize(
    "made",
    [
        "trained = model",
        "trained = model.to('cpu')",
        "trained = nn.DataParallel(model) if torch.cuda.device_count() > 1 else model",
    ],
)
def test_a_model_that_another_name_trains_is_refused(made: str, tmp_path: Path) -> None:
    (refusal,) = conversion(tmp_path, TWO_NAMES.replace("MADE", made)).refusals
    assert refusal.code == "RF003" and "the one that is trained has another name" in refusal.refusal


def test_a_model_that_its_own_name_trains_is_converted(tmp_path: Path) -> None:
    text = TWO_NAMES.replace("MADE", "trained = model").replace("self.trained(x)", "self.model(x)")
    assert not conversion(tmp_path, text).refusals


CRITERION = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.norm = nn.Linear(4, 8), nn.BatchNorm1d(8)

    def forward(self, x):
        return self.norm(self.layer(x))


def make(name):
    model = NETS[name]
    model = model()
    return model


class Error(nn.Module):
    def forward(self, output, target):
        return (output.flatten(1) - target).pow(2).sum() / output.size(0)


def error(output, target):
    return (output - target).abs().mean()


class Trainer:
    def __init__(self, name):
        self.net = make(name)
        self.criterion = Error() if name == "big" else error
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)

    def predict(self):
        self.output = self.net(self.input)

    def step(self):
        self.predict()
        self.loss = self.criterion(self.output, self.target)
        self.optimizer.zero_grad()
        self.loss.backward()
        self.optimizer.step()


NETS = {"big": Net, "small": Net}
torch.manual_seed(0)
trainer = Trainer("big")
for x, y in DataLoader(TensorDataset(torch.randn(64, 4), torch.randn(64, 8)), batch_size=8):
    trainer.input, trainer.target = x, y
    trainer.step()
"""


def test_a_criterion_has_no_layers_of_the_model_whose_output_it_is_given(tmp_path: Path) -> None:
    (file,) = conversion(tmp_path, CRITERION).files
    assert "self.net = rd.distribute_model(self.net)" in file.text
    assert "convert_sync_batchnorm" not in file.text
