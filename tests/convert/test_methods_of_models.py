"""Models that are trained through methods and layers: the wrapper is told which of them the training calls."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import conversion, converted

SCRIPT = """\
import torch
from torch import nn, optim
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


class Inner(nn.Module):
    def __init__(self):
        super().__init__()
        self.lift = nn.Linear(4, 3)

    def forward(self, x):
        return self.lift(x)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = Inner(), nn.Linear(3, 4)
        self.heads = nn.ModuleDict({"box": nn.Linear(3, 2)})
        self.layers = nn.ModuleList([nn.Linear(4, 4)])
        self.scale = nn.Parameter(torch.ones(()))

    def encode(self, x):
        return self.encoder(x)

    def decode(self, z):
        return self.decoder(z)

    def forward(self, x):
        return self.decode(self.encode(x))

    def training_step(self, x):
        return self.error(self(x), x)

    def error(self, output, x):
        return F.mse_loss(output, x)

    def scaled(self, z):
        return z * self.scale

    def through(self, x):
        for layer in self.layers:
            x = layer(x)
        return x

    @torch.no_grad()
    def sample(self, n):
        return self.decode(torch.randn(n, 3))


loader = DataLoader(TensorDataset(torch.randn(16, 4)), 4)
model = Net()
optimizer = optim.SGD(model.parameters(), lr=0.1)
for (x,) in loader:
    LOSS
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    model.sample(2)
"""


@pytest.mark.parametrize(
    ("loss", "methods"),
    [
        ("loss = F.mse_loss(model.decode(model.encode(x)), x)", ', methods=["decode", "encode"]'),
        ("loss = model.training_step(x)", ', methods=["training_step"]'),
        ("loss = F.mse_loss(model.decoder(model.encoder(x)), x)", ', methods=["decoder", "encoder"]'),
        ("loss = F.mse_loss(model.decoder(model.encoder.lift(x)), x)", ', methods=["decoder", "encoder.lift"]'),
        ("loss = model.heads['box'](model.encode(x)).mean()", ', methods=["encode", "heads"]'),
        ("loss = F.mse_loss(model(x), x) + model.encode(x).mean()", ', methods=["encode"]'),
        ("loss = model.scaled(model(x)).mean()", ', methods=["scaled"]'),
        ("loss = model.through(x).mean()", ', methods=["through"]'),
        ("loss = sum(layer(x).mean() for layer in model.layers)", ', methods=["layers"]'),
        (
            "loss = 0\n    for layer in model.layers:\n        loss += layer(x).mean()\n"
            "    for name, layer in model.heads.items():\n        loss += layer(model.encode(x)).mean()",
            ', methods=["encode", "heads", "layers"]',
        ),
        # computes of what it is given alone
        ("loss = model.error(model(x), x)", ""),
        ("loss = F.mse_loss(model(x), x)", ""),
    ],
)
def test_the_wrapper_knows_what_is_called(loss: str, methods: str, tmp_path: Path) -> None:
    assert f"model = rd.distribute_model(model{methods})" in converted(tmp_path, SCRIPT.replace("LOSS", loss))


def test_a_function_that_moves_models_and_tensors(tmp_path: Path) -> None:
    moved = "def moved(value):\n    return value.cuda() if torch.cuda.is_available() else value\n\n\nloader ="
    script = SCRIPT.replace("LOSS", "loss = F.mse_loss(model.decode(model.encode(moved(torch.Tensor(x)))), x)")
    script = script.replace("loader =", moved).replace("model = Net()", "model = moved(Net())")
    assert 'model = rd.distribute_model(model, methods=["decode", "encode"])' in converted(tmp_path, script)


@pytest.mark.parametrize("loss", ["F.mse_loss(model.decode(PART), x)", "PART.mean()"])
def test_the_forward_of_a_part_is_called_as_that_part(loss: str, tmp_path: Path) -> None:
    lines = converted(tmp_path, SCRIPT.replace("LOSS", f"loss = {loss}".replace("PART", "model.encoder.forward(x)")))
    assert f"loss = {loss}".replace("PART", "model.encoder(x)") in lines
    methods = '"decode", "encoder"' if "decode" in loss else '"encoder"'
    assert f"model = rd.distribute_model(model, methods=[{methods}])" in lines


STEPPING = """\
import torch
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset


class Part(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x):
        return self.encode(x)

    def encode(self, x):
        return self.layer(x)


class Learner(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.heads, self.part = nn.Linear(4, 2), nn.ModuleList([nn.Linear(2, 2)]), Part()
        self.scale = nn.Parameter(torch.ones(2))

    def forward(self, x):
        return self.layer(x)

    def encode(self, x):
        return self.layer(x).relu()

    def update(self, x, optimizer):
        LOSS
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

FIT
loader = DataLoader(TensorDataset(torch.randn(16, 4)), 4)
learner = Learner()
optimizer = optim.SGD(learner.parameters(), lr=0.1)
RUN
"""
LOOP = "for (x,) in loader:\n    learner.update(x, optimizer)"
FIT = """\
    def fit(self, loader, optimizer):
        for (x,) in loader:
            self.update(x, optimizer)


"""
RUNS = [("", LOOP), (FIT, "learner.fit(loader, optimizer)")]


@pytest.mark.parametrize(("fit", "run"), RUNS)
@pytest.mark.parametrize(
    ("loss", "methods"),
    [
        ("loss = self(x).mean()", '["forward"]'),
        ("loss = self.forward(x).mean()", '["forward"]'),
        ("loss = self.encode(x).mean()", '["layer"]'),
        ("loss = self.heads[0](self(x)).mean()", '["forward", "heads"]'),
        ("loss = self.heads[0].forward(self.layer.forward(x)).mean()", '["heads", "layer"]'),
        ("loss = self.part.encode(x).mean()", '["part.layer"]'),
        ("loss = sum(head(self(x)).mean() for head in self.heads)", '["forward", "heads"]'),
        ("loss = self.part.forward(x).mean()", '["part"]'),
    ],
)
def test_a_model_that_trains_itself_is_entered_from_inside(
    loss: str, methods: str, fit: str, run: str, tmp_path: Path
) -> None:
    lines = converted(tmp_path, STEPPING.replace("LOSS", loss).replace("FIT", fit).replace("RUN", run))
    assert f"learner = rd.distribute_model(learner, methods={methods})" in lines


def test_a_method_that_steps_with_its_parameters_alone_is_refused(tmp_path: Path) -> None:
    result = conversion(
        tmp_path,
        STEPPING.replace("LOSS", "loss = (x[:, :2] * self.scale).mean()").replace("FIT", "").replace("RUN", LOOP),
    )
    assert result.refusals


FORWARD_STEPS = (
    STEPPING.replace("LOSS", "loss = self.layer(x).mean()")
    .replace("FIT", "")
    .replace(
        "    def forward(self, x):\n        return self.layer(x)\n",
        "    def forward(self, x):\n        self.update(x, optimizer)\n",
    )
)


@pytest.mark.parametrize("run", ["learner(x)", "learner.forward(x)"])
def test_a_forward_pass_that_calls_backward_is_refused(run: str, tmp_path: Path) -> None:
    (finding,) = conversion(tmp_path, FORWARD_STEPS.replace("RUN", f"for (x,) in loader:\n    {run}")).refusals
    assert "calls backward inside it" in finding.refusal


def test_a_layer_that_calls_backward_is_refused(tmp_path: Path) -> None:
    outer = """\
class Outer(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Learner()

    def step(self, x):
        self.inner(x)
        optimizer.step()


loader = """
    script = FORWARD_STEPS.replace("loader = ", outer, 1).replace("learner = Learner()", "learner = Outer()")
    run = "for (x,) in loader:\n    learner.step(x)"
    assert conversion(tmp_path, script.replace("RUN", run)).refusals


OWN_OPTIMIZER = STEPPING.replace("LOSS", "loss = self(x).mean()").replace(
    "    def forward", "        self.optimizer = optim.SGD(self.parameters(), lr=0.1)\n\n    def forward"
)


def test_a_model_with_its_optimizer_inside_is_wrapped(tmp_path: Path) -> None:
    script = OWN_OPTIMIZER.replace("optimizer = optim.SGD(learner.parameters(), lr=0.1)\n", "")
    script = script.replace("FIT", FIT).replace("RUN", "learner.fit(loader, learner.optimizer)")
    assert 'learner = rd.distribute_model(learner, methods=["forward"])' in converted(tmp_path, script)


TRAINER = """\
class Trainer(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net = net
        self.optimizer = net.make_optimizer()

    def forward(self, x):
        return self.net.out(self.net.lift(x)).mean()

    def step(self, x):
        loss = self.forward(x)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.lift, self.out = nn.Linear(4, 3), nn.Linear(3, 1)

    def make_optimizer(self):
        return optim.SGD([p for p in self.parameters() if p.requires_grad], lr=0.1)


net = Net()
trainer = Trainer(net)
for (x,) in loader:
    trainer.step(x)
"""


STATIC = """\
import torch
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset


class Learner(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x):
        return self.layer(x)

    @staticmethod
    def loss(model, x):
        return model(x).mean()

    @staticmethod
    def update(model, x, optimizer):
        loss = Learner.loss(model, x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


loader = DataLoader(TensorDataset(torch.randn(16, 4)), 4)
learner = Learner()
optimizer = optim.SGD(learner.parameters(), lr=0.1)
for (x,) in loader:
    STEP
"""
STATIC_STEPS = {
    "that steps": "learner.update(learner, x, optimizer)",
    "that is a loss": "learner.loss(learner, x).backward()\n    optimizer.step()\n    optimizer.zero_grad()",
}


@pytest.mark.parametrize("step", STATIC_STEPS)
def test_a_static_method_is_given_the_wrapper(tmp_path: Path, step: str) -> None:
    lines = converted(tmp_path, STATIC.replace("STEP", STATIC_STEPS[step]))
    assert "learner = rd.distribute_model(learner)" in lines


def test_a_module_that_trains_another_one_leaves_the_wrapper_to_it(tmp_path: Path) -> None:
    head = STEPPING[: STEPPING.index("class Learner")] + "loader = DataLoader(TensorDataset(torch.randn(16, 4)), 4)\n"
    lines = converted(tmp_path, head + TRAINER)
    assert [line for line in lines if "distribute_model" in line] == [
        'net = rd.distribute_model(net, methods=["lift", "out"])'
    ]


PAIR = """\
class NAME(nn.Module):
    def __init__(self):
        super().__init__()
        self.gen, self.dis = nn.Linear(4, 4), nn.Linear(4, 1)
        self.optimizers = [optim.SGD(net.parameters(), lr=0.1) for net in (self.gen, self.dis)]

    def update(self, x):
        for optimizer, sign in zip(self.optimizers, (1, -1)):
            loss = sign * self.dis(self.gen(x)).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


"""


def test_the_parts_of_several_modules_that_train_them_are_wrapped(tmp_path: Path) -> None:
    head = STEPPING[: STEPPING.index("class Learner")] + "loader = DataLoader(TensorDataset(torch.randn(16, 4)), 4)\n"
    run = "trainer = First() if len(loader) > 2 else Second()\nfor (x,) in loader:\n    trainer.update(x)\n"
    script = head + PAIR.replace("NAME", "First") + PAIR.replace("NAME", "Second") + run
    lines = converted(tmp_path, script)
    assert lines.count("self.gen = rd.distribute_model(self.gen)") == 2
    assert lines.count("self.dis = rd.distribute_model(self.dis)") == 2


ENGINE = """\
class Engine:
    def run(self, loader):
        for (x,) in loader:
            self.step(x)


class Regression(Engine):
    def __init__(self, model):
        self.model = model
        self.optimizer = optim.SGD(model.parameters(), lr=0.1)

    def step(self, x):
        loss = self.model(x).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()


model = nn.Linear(4, 1)
Regression(model).run(DataLoader(TensorDataset(torch.randn(16, 4)), 4))
"""


def test_a_step_that_only_a_derived_class_has_is_found(tmp_path: Path) -> None:
    lines = converted(tmp_path, STEPPING[: STEPPING.index("class Learner")] + ENGINE)
    assert "model = rd.distribute_model(model)" in lines


REPLACED = """\
import torch
import torchvision
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset

loader = DataLoader(TensorDataset(torch.randn(16, 3, 32, 32), torch.zeros(16).long()), 4)
model = torchvision.models.resnet18()
for parameter in model.parameters():
    parameter.requires_grad = False
features = model.fc.in_features
PART = nn.Linear(features, 2)
optimizer = optim.SGD(filter(lambda p: p.requires_grad, model.parameters()), lr=0.1)
for x, y in loader:
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


@pytest.mark.parametrize("part", ["model.fc", "model.layer4[1].fc", "model.classifier[6]"])
def test_a_model_is_wrapped_after_its_last_layer_is_replaced(part: str, tmp_path: Path) -> None:
    lines = converted(tmp_path, REPLACED.replace("PART", part))
    place = lines.index("model = rd.distribute_model(model)")
    assert lines[place - 1] == f"{part} = nn.Linear(features, 2)"
