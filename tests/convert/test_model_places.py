"""A model that several methods set is wrapped where its training begins, or the reason why not is told."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import conversion, converted, let_every_process_write
from verify.projects.launch import Launcher

from retrofit.cli import main

SCRIPT = """\
import os, sys

import torch
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset


class Distance(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.inner = model

    def forward(self, x, y):
        return (self.inner(x) - y).pow(2).mean()


class Trainer:
    def __init__(self, first=''):
        torch.manual_seed(0)
        self.loader = DataLoader(TensorDataset(torch.randn(44, 4), torch.randn(44, 2)), 8, shuffle=True)
        {init}
        self.optimizer = optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        {behind}

    def build(self):
        return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))

    def load_model(self, path):
        self.model = self.build()
        self.model.load_state_dict(torch.load(path))

    def move(self):
        self.model = {moved}

    def train(self):
        {start}
        for epoch in range(2):
            for x, y in self.loader:
                self.optimizer.zero_grad()
                {loss}.backward()
                self.optimizer.step()
            {after}
            torch.save(self.model.state_dict(), 'model.pt')

    def predict(self):
        self.load_model('model.pt')
        self.model.eval()
        with torch.no_grad():
            return self.model(torch.ones(1, 4)).tolist()


trainer = Trainer()
trainer.train()
sys.stdout.flush()
os.write(1, repr([*trainer.model.state_dict().values(), trainer.predict()]).encode())
"""
PLAIN = {
    "init": "self.model = self.build()",
    "behind": "pass",
    "moved": "self.model.to('cpu')",
    "start": "pass",
    "after": "pass",
    "loss": "(self.model(x) - y).pow(2).mean()",
}
BY_METHODS = {
    "loaded for prediction": {},
    "moved by another method": {"behind": "self.move()"},
    "DataParallel in another method": {"behind": "self.move()", "moved": "nn.DataParallel(self.model)"},
    "loaded or built": {"init": "self.load_model(first) if first else setattr(self, 'model', self.build())"},
    "moved by the training": {"start": "self.model = self.model.to('cpu')"},
    "with another name in training": {"start": "net = self.model", "loss": "(net(x) - y).pow(2).mean()"},
}
REFUSED = {
    "self.model is set again while it trains, at train.py:29:9": {"after": "self.load_model('model.pt')"},
    "train.py:14:17 calls what another object was given of it before it trains": {
        "behind": "self.distance = Distance(self.model)",
        "loss": "self.distance(x, y)",
    },
}


def script(**parts: str) -> str:
    return SCRIPT.format(**{**PLAIN, **parts})


@pytest.mark.parametrize("shape", BY_METHODS)
def test_the_model_is_wrapped_where_training_begins(tmp_path: Path, shape: str) -> None:
    lines = converted(tmp_path, script(**BY_METHODS[shape]))
    (place,) = [number for number, line in enumerate(lines) if "distribute_model" in line]
    assert lines[place] == "self.model = rd.distribute_model(self.model)"
    assert lines.index("def train(self):") < place < lines.index("for epoch in range(2):")


@pytest.mark.parametrize("reason", REFUSED)
def test_a_refusal_says_what_would_be_missed(tmp_path: Path, reason: str) -> None:
    refusals = [finding.refusal for finding in conversion(tmp_path, script(**REFUSED[reason])).refusals]
    assert any(reason in refusal for refusal in refusals), refusals


@pytest.mark.parametrize("shape", ["loaded for prediction", "moved by another method"])
def test_processes_train_the_model_of_one(tmp_path: Path, launcher: Launcher, shape: str) -> None:
    for name in ("alone", "together"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "train.py").write_text(script(**BY_METHODS[shape]))
    assert main(["convert", str(tmp_path / "together" / "train.py"), "--write"]) == 0
    (alone,) = launcher.run(tmp_path / "alone", "train.py", [])["outputs"]
    assert launcher.run(tmp_path / "together", "train.py", [])["outputs"] == [alone]
    let_every_process_write(tmp_path / "together" / "train.py")
    run = launcher.run(tmp_path / "together", "train.py", [], world_size=2, RETROFIT_BATCH="global")
    assert run["statuses"] == [0, 0], run["outputs"]
    first, second = (output[output.index("[tensor") :] for output in run["outputs"])
    assert first == second


DERIVED = """\
import torch
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset


class Trainer:
    def __init__(self):
        self.model = nn.Linear(4, 1)
        self.optimizer = optim.SGD(self.model.parameters(), lr=0.1)

    def fit(self, loader):
        for (x,) in loader:
            self.optimizer.zero_grad()
            self.model(x).mean().backward()
            self.optimizer.step()


class Wide(Trainer):
    def __init__(self):
        super().__init__()
        self.model = nn.Linear(4, 2)
        self.optimizer = optim.SGD(self.model.parameters(), lr=0.1)


torch.manual_seed(0)
loader = DataLoader(TensorDataset(torch.randn(16, 4)), 4, shuffle=True)
{made}().fit(loader)
"""


@pytest.mark.parametrize(
    ("made", "later"), [("Wide", "def fit(self, loader):"), ("Trainer", "self.model = nn.Linear(4, 1)")]
)
def test_a_derived_class_trains_the_model_that_it_builds(tmp_path: Path, made: str, later: str) -> None:
    lines = converted(tmp_path, DERIVED.format(made=made))
    (place,) = [number for number, line in enumerate(lines) if "distribute_model" in line]
    assert lines[place - 1] == later


OWN_METHOD = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 2)

    def warm_start(self):
        nn.init.zeros_(self.body.weight)

    def forward(self, x):
        return self.body(x)


model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model.warm_start()
loader = DataLoader(TensorDataset(torch.randn(8, 4), torch.randn(8, 2)), batch_size=4, shuffle=True)
for x, y in loader:
    optimizer.zero_grad()
    nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()
"""


def test_a_model_is_wrapped_after_its_own_methods_have_changed_it(tmp_path: Path) -> None:
    lines = converted(tmp_path, OWN_METHOD)
    assert lines.index("model.warm_start()") < lines.index("model = rd.distribute_model(model)")


HANDED_OVER = """\
import torch
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset

loader = DataLoader(TensorDataset(torch.randn(8, 4), torch.randn(8, 2)), batch_size=4, shuffle=True)


def build(width):
    net = nn.Linear(4, width)
    sgd = optim.SGD(net.parameters(), lr=0.1)
    RETURN


def train(model, optimizer):
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()


MADE
train(model, optimizer)
"""
WITH_OPTIMIZER = {
    "a tuple": ("return net, sgd", "model, optimizer = build(2)"),
    "one of two tuples": (
        "if width > 1:\n        return net, sgd, 0\n    return net, sgd, 1",
        "model, optimizer, start = build(2)",
    ),
    "nested": ("return (net, sgd), optim.lr_scheduler.StepLR(sgd, 1)", "(model, optimizer), scheduler = build(2)"),
    "taken apart later": ("return [net, sgd]", "parts = build(2)\nmodel, optimizer = parts"),
    "by index": ("return net, sgd", "parts = build(2)\nmodel = parts[0]\noptimizer = parts[1]"),
    "moved then": ("return net, sgd", "model, optimizer = build(2)\nmodel = nn.DataParallel(model)"),
    "its parameters": (
        "return net, net.parameters()",
        "model, parameters = build(2)\noptimizer = optim.SGD(parameters, lr=0.1)",
    ),
    "through another function": (
        "return net, sgd\n\n\ndef prepare(width):\n    made, its = build(width)\n    return its, made",
        "optimizer, model = prepare(2)",
    ),
}


@pytest.mark.parametrize("shape", WITH_OPTIMIZER)
def test_a_model_that_comes_with_its_optimizer_is_wrapped_after_both(tmp_path: Path, shape: str) -> None:
    returned, made = WITH_OPTIMIZER[shape]
    lines = converted(tmp_path, HANDED_OVER.replace("RETURN", returned).replace("MADE", made))
    (place,) = [number for number, line in enumerate(lines) if "distribute_model" in line]
    assert lines[place] == "model = rd.distribute_model(model)"
    assert "model" in lines[place - 1].partition("=")[0]
    assert any("scaled_lr(0.1)" in line for line in lines)


RUNNER = """\
import torch
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset


class Runner:
    def __init__(self, model):
        self.model = model.to("cpu")
        self.optimizer = optim.SGD(model.parameters(), lr=0.1)

    def train(self):
        self.model = self.model.train()
        for (x,) in loader:
            self.optimizer.zero_grad()
            self.model(x).mean().backward()
            self.optimizer.step()
        self.model = self.model.eval()


loader = DataLoader(TensorDataset(torch.randn(16, 4)), 4)
runner = Runner(nn.Linear(4, 1))
for epoch in range(2):
    runner.train()
"""


def test_a_model_that_its_training_assigns_to_itself_is_wrapped_before(tmp_path: Path) -> None:
    lines = converted(tmp_path, RUNNER)
    place = lines.index("self.model = rd.distribute_model(self.model)")
    assert lines[place - 1] == 'self.model = model.to("cpu")'


FACTORY = """\
import torch
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset


def set_model():
    model = nn.Linear(4, 2)
    criterion = nn.CrossEntropyLoss()
    if torch.cuda.is_available():
        model = model.cuda()
        criterion = criterion.cuda()
    return model, criterion


loader = DataLoader(TensorDataset(torch.randn(16, 4), torch.zeros(16).long()), 4)
model, criterion = set_model()
optimizer = optim.SGD(model.parameters(), lr=0.1)
for x, y in loader:
    optimizer.zero_grad()
    criterion(model(x), y).backward()
    optimizer.step()
"""


def test_the_loss_that_a_function_returns_with_the_model_is_not_wrapped(tmp_path: Path) -> None:
    lines = converted(tmp_path, FACTORY)
    assert [line for line in lines if "distribute_model" in line] == ["model = rd.distribute_model(model)"]


def test_two_functions_that_hand_their_models_to_a_third_one(tmp_path: Path) -> None:
    script = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.randn(64, 4), torch.randn(64, 1))


def restored(model, path):
    model.load_state_dict(torch.load(path))
    return model


def train(path=None):
    model = nn.Linear(4, 1)
    if path:
        model = restored(model, path)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in DataLoader(data, batch_size=8):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()


def predict(path):
    model = nn.Linear(4, 1)
    model = restored(model, path)
    return model(torch.zeros(1, 4))


train()
"""
    lines = converted(tmp_path, script)
    assert lines.count("model = rd.distribute_model(model)") == 1
    assert lines.index("model = rd.distribute_model(model)") < lines.index("def predict(path):")


def test_the_forward_pass_of_a_model_of_a_library_by_its_name(tmp_path: Path) -> None:
    script = """\
import torch
import transformers
from torch.utils.data import DataLoader, TensorDataset

loader = DataLoader(TensorDataset(torch.zeros(64, 4).long()), batch_size=8)
model = transformers.GPT2LMHeadModel(transformers.GPT2Config())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for (x,) in loader:
    optimizer.zero_grad()
    model.forward(input_ids=x, labels=x)[0].backward()
    optimizer.step()
"""
    assert "model = rd.distribute_model(model)" in converted(tmp_path, script)


CALLBACKS = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

loader = DataLoader(TensorDataset(torch.randn(32, 4), torch.randn(32, 4)), batch_size=8, shuffle=False)


class Callback:
    def set_model(self, model):
        self.model = model

    def on_epoch_end(self):
        pass


class Evaluate(Callback):
    def __init__(self, function, data):
        self.function, self.data = function, data

    def on_epoch_end(self):
        total = 0.0
        for x, y in self.data:
            total += self.function(self.model, x, y, None, train=False).item()
        print(f"held out {total:.5f}")


class Callbacks:
    def __init__(self, items):
        self.items = items

    def set_model(self, model):
        for item in self.items:
            item.set_model(model)

    def on_epoch_end(self):
        for item in self.items:
            item.on_epoch_end()


def episode(model, x, y, optimizer, train):
    if train:
        model.train()
        optimizer.zero_grad()
    else:
        model.eval()
    loss = nn.functional.mse_loss(model(x), y)
    if train:
        loss.backward()
        optimizer.step()
    return loss


def fit(model, optimizer, data, function, callbacks):
    callbacks = Callbacks(callbacks)
    callbacks.set_model(model)
    for epoch in range(2):
        for x, y in data:
            function(model, x, y, optimizer, train=True)
        callbacks.on_epoch_end()


held_out = DataLoader(TensorDataset(torch.randn(16, 4), torch.randn(16, 4)), batch_size=8)
model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
fit(model, optimizer, loader, episode, [Evaluate(episode, held_out)])
"""


def test_a_function_that_callbacks_run_too_trains_the_model_that_it_is_given(tmp_path: Path) -> None:
    assert "model = rd.distribute_model(model)" in converted(tmp_path, CALLBACKS)


REPEATED = """\
import torch
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset


def load(model, path):
    if not path:
        return None
    {loaded}
    return model, 1


class Experiment:
    def __init__(self):
        self.model = nn.Linear(4, 1)

    def train(self, path, start=0):
        optimizer = optim.SGD(self.model.parameters(), lr=0.1)
        if path:
            self.model, start = load(self.model, path)
        for epoch in range(start, 2):
            for (x,) in loader:
                optimizer.zero_grad()
                self.model(x).mean().backward()
                optimizer.step()
        self.model.load_state_dict(torch.load("best.pt"))


loader = DataLoader(TensorDataset(torch.randn(16, 4)), 4)
for repetition in range(2):
    Experiment().train("")
"""


def test_a_model_that_a_function_fills_and_returns_is_that_of_before(tmp_path: Path) -> None:
    lines = converted(tmp_path, REPEATED.format(loaded="model.load_state_dict(torch.load(path))"))
    place = lines.index("self.model = rd.distribute_model(self.model)")
    assert lines[place + 1] == "for epoch in range(start, 2):"


def test_a_model_that_a_function_makes_in_its_place_is_another_one(tmp_path: Path) -> None:
    text = REPEATED.format(loaded="model = nn.Linear(4, 1)").replace(
        "            for (x,)", "            {}\n            for (x,)"
    )
    (refusal,) = conversion(tmp_path, text.format("self.model, start = load(self.model, path)")).refusals
    assert "self.model is set again while it trains" in str(refusal.refusal)


TWO_NAMES = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

several = False
data = TensorDataset(torch.randn(32, 4), torch.arange(32) % 2)
loader = DataLoader(data, batch_size=8, shuffle=True)
held_out = DataLoader(data, batch_size=8)
{named}
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(trained(x), y).backward()
        optimizer.step()
    with torch.no_grad():
        print(sum(model(x).sum().item() for x, _ in held_out))
"""
WRAPPED = "model = rd.distribute_model(model)"


@pytest.mark.parametrize(
    "named",
    [
        "trained = model.cpu()",
        "trained, limit = model, 3",
        "trained = nn.DataParallel(model) if several else model",
        "if several:\n    trained = nn.DataParallel(model)\nelse:\n    trained = model",
        "trained = torch.compile(model)",
        "trained = nn.DataParallel(model) if several else model\nmodel.load_state_dict(torch.load('start.pt'))",
    ],
)
def test_a_model_is_wrapped_under_the_name_that_its_other_names_come_from(tmp_path: Path, named: str) -> None:
    lines = converted(tmp_path, TWO_NAMES.format(named="model = nn.Linear(4, 2)\n" + named))
    assert lines[lines.index(WRAPPED) - 1] == "model = nn.Linear(4, 2)"


@pytest.mark.parametrize(
    "named",
    [
        "trained = model = nn.Linear(4, 2)",
        "model = nn.Linear(4, 2)\ntrained = model\nmodel = model.cpu()",
    ],
)
def test_names_that_a_model_has_before_its_wrapper_are_of_the_wrapper_too(tmp_path: Path, named: str) -> None:
    lines = converted(tmp_path, TWO_NAMES.format(named=named))
    assert "trained = " + WRAPPED in lines


def test_a_copy_is_another_model(tmp_path: Path) -> None:
    named = "import copy\ntrained = nn.Linear(4, 2)\nmodel = copy.deepcopy(trained)"
    text = TWO_NAMES.format(named=named).replace("SGD(model.", "SGD(trained.")
    assert "trained = rd.distribute_model(trained)" in converted(tmp_path, text)


def test_an_attribute_and_a_name_of_one_model_are_one_model(tmp_path: Path) -> None:
    text = script(init="self.model = model = self.build()").replace("SGD(self.model.", "SGD(model.")
    assert "self.model = rd.distribute_model(self.model)" in converted(tmp_path, text)


COMPILED = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

device = "cuda" if torch.cuda.is_available() else "cpu"
loader = DataLoader(TensorDataset(torch.randn(16, 4)), batch_size=4)
model = nn.Linear(4, 1)
MOVED
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for (x,) in loader:
    loss = fast(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


@pytest.mark.parametrize("made", ["torch.compile(model)", 'torch.compile(model) if device == "cuda" else model'])
@pytest.mark.parametrize("moved", ["model = model.to(device)", "model.to(device)"])
def test_a_compiled_model_is_wrapped_after_the_model_in_it_has_moved(tmp_path: Path, made: str, moved: str) -> None:
    lines = converted(tmp_path, COMPILED.replace("MOVED", f"fast = {made}\n{moved}"))
    assert lines.index("fast = rd.distribute_model(fast)") == lines.index(moved) + 1


TWO_SOLVERS = """\
import argparse

import torch
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset


class Base:
    def __init__(self):
        torch.manual_seed(0)
        self.loader = DataLoader(TensorDataset(torch.randn(44, 4), torch.randn(44, 2)), 8, shuffle=True)

    def backward(self, loss):
        loss.backward()
        self.optimizer.step()

    def compile(self):
        if args.compile:
            self.model = torch.compile(self.model)


class First(Base):
    def set_model(self):
        self.model = nn.Linear(4, 2)
        self.optimizer = optim.SGD(self.model.parameters(), lr=0.1)
        self.compile()

    def run(self):
        for x, y in self.loader:
            self.optimizer.zero_grad()
            self.backward((self.model(x) - y).pow(2).mean())


class Second(Base):
    def set_model(self):
        self.model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
        self.optimizer = optim.SGD(self.model.parameters(), lr=0.1)
        self.compile()

    def run(self):
        for x, y in self.loader:
            self.optimizer.zero_grad()
            self.backward((self.model(x) - y).abs().mean())


parser = argparse.ArgumentParser()
parser.add_argument("--second", action="store_true")
parser.add_argument("--compile", action="store_true")
args = parser.parse_args()
solver = Second() if args.second else First()
solver.set_model()
solver.run()
"""


def test_each_of_two_trainings_wraps_its_own_model(tmp_path: Path) -> None:
    result = conversion(tmp_path, TWO_SOLVERS)
    assert not result.refusals
    lines = [line.strip() for line in result.files[0].text.splitlines()]
    wrapped = [place for place, line in enumerate(lines) if line == "self.model = rd.distribute_model(self.model)"]
    assert [lines[place - 1] for place in wrapped] == ["def run(self):"] * 2
