"""A generator of batches that training and evaluation share: the evaluation keeps its whole batches."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import conversion, converted
from convert.training_runs import trains_as_one
from verify.projects.launch import Launcher

START = """\
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
X, Y = torch.rand(100, 4), torch.rand(100)
VX, VY = torch.rand(40, 4), torch.rand(40)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def batches(x, y, n):
    order = torch.randperm(len(x))
    for i in range(0, len(x), n):
        rows = order[i : i + n]
        yield x[rows], y[rows]


class Data:
    def __init__(self, x, y):
        self.x, self.y = x, y

    def batches(self, n):
        order = torch.randperm(len(self.x))
        for i in range(0, len(self.x), n):
            rows = order[i : i + n]
            yield self.x[rows], self.y[rows]


def evaluate(loss_of):
    kept = []
    with torch.no_grad():
        for EVALUATED:
            kept.append(model(x).squeeze(1) - y)
    return torch.cat(kept).abs().max().item()


best = 9.0
for epoch in range(3):
    for x, y in TRAINED:
        loss = F.mse_loss(model(x).squeeze(1), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    value = evaluate(None)
    if value < best:
        best = value
        torch.save(model.state_dict(), "best.pt")
    print(value)
"""


def script(trained: str, evaluated: str) -> str:
    return START.replace("TRAINED", trained).replace("EVALUATED", evaluated)


@pytest.mark.parametrize(
    ("trained", "evaluated", "expected"),
    [
        ("batches(X, Y, 8)", "x, y in batches(VX, VY, 8)", "x, y in rd.data.whole_batches(batches(VX, VY, 8))"),
        (
            "batches(X, Y, 8)",
            "i, (x, y) in enumerate(batches(VX, VY, 8))",
            "i, (x, y) in enumerate(rd.data.whole_batches(batches(VX, VY, 8)))",
        ),
        ("batches(X, Y, 8)", "x, y in batches(X, Y, 8)", "x, y in rd.data.whole_batches(batches(X, Y, 8))"),
        (
            "Data(X, Y).batches(8)",
            "x, y in Data(VX, VY).batches(8)",
            "x, y in rd.data.whole_batches(Data(VX, VY).batches(8))",
        ),
    ],
)
def test_an_evaluation_goes_through_whole_batches(tmp_path: Path, trained: str, evaluated: str, expected: str) -> None:
    lines = converted(tmp_path, script(trained, evaluated))
    assert f"for {expected}:" in lines
    assert f"for x, y in {trained}:" in lines
    assert any("rd.data.own_part(" in line for line in lines)


def test_its_figures_are_the_same_on_all_ranks(tmp_path: Path) -> None:
    result = conversion(tmp_path, script("batches(X, Y, 8)", "x, y in batches(VX, VY, 8)"))
    assert not [finding for finding in result.listed if "rank 0's share" in finding.message]


def test_a_generator_that_keeps_another_one_is_wrapped_where_the_evaluation_calls_it(tmp_path: Path) -> None:
    outer = "def doubled(x, y, n):\n    for a, b in batches(x, y, n):\n        yield 2 * a, b\n\n\nclass Data:"
    text = script("doubled(X, Y, 8)", "x, y in doubled(VX, VY, 8)").replace("class Data:", outer, 1)
    lines = converted(tmp_path, text)
    assert "for x, y in rd.data.whole_batches(doubled(VX, VY, 8)):" in lines
    assert "for a, b in batches(x, y, n):" in lines and "for x, y in doubled(X, Y, 8):" in lines


SLICED = """\
import numpy as np
import torch
from torch import nn

torch.manual_seed(0)
np.random.seed(0)
X, VX = torch.rand(96, 4), torch.rand(40, 4)
model = nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
size = 8
order = list(range(len(X)))


def loss_of(out, x, weight):
    return weight * ((out - x) ** 2).mean()


class Loss(nn.Module):
    def forward(self, out, x, weight):
        return loss_of(out, x, weight)


criterion = Loss()


def train():
    np.random.shuffle(order)
    for i, start in enumerate(range(0, len(X), size)):
        x = X[order[start : start + size]]
        loss = LOSS(model(x), x, 1.0)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(i, len(range(0, len(X), size)), round(loss.item(), 5))


def evaluate():
    rows, total = list(range(len(VX))), 0.0
    SWITCH
        for start in range(0, len(VX), size):
            x = VX[rows[start : start + size]]
            total += LOSS(model(x), x, 1.0).item()
    return total / len(range(0, len(VX), size))


for epoch in range(2):
    train()
    print(round(evaluate(), 5))
"""


@pytest.mark.parametrize("loss", ["loss_of", "criterion"])
@pytest.mark.parametrize("switch", ["with torch.no_grad():", "for _ in range(1):"])
def test_slices_of_an_evaluation_stay_whole_where_it_calls_the_same_loss(
    tmp_path: Path, loss: str, switch: str
) -> None:
    result = conversion(tmp_path, SLICED.replace("LOSS(", f"{loss}(").replace("SWITCH", switch))
    assert not result.refusals
    lines = [line.strip() for line in result.files[0].text.splitlines()]
    assert "x = X[rd.data.own_part(order[start : start + rd.data.batch_of_ranks(size)])]" in lines
    assert "x = VX[rows[start : start + size]]" in lines and "for start in range(0, len(VX), size):" in lines
    assert any("len(range(0, len(X), rd.loss.global_batch(size)))" in line for line in lines)


CALLED = """\
import torch
from torch import nn

torch.manual_seed(0)
X, VX = torch.rand(96, 4), torch.rand(40, 4)
model = nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
size = 8


def batch_at(data, order, first):
    return data[order[first : first + size]]


def evaluate(data):
    total, order = 0.0, list(range(len(data)))
    with torch.no_grad():
EVALUATION
    return total


def train(order):
    for first in range(0, len(X), size):
        x = batch_at(X, order, first)
        loss = (model(x) - x).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


for epoch in range(2):
    train(torch.randperm(len(X)))
    for data in (X, VX):
        print(round(evaluate(data), 5))
"""
OF_RANGE = "for first in range(0, len(data), size):\nx = batch_at(data, order, first)\ntotal += model(x).sum().item()"
OF_NUMBERS = "for i in range(5):\nx = batch_at(data, order, i * size)\ntotal += model(x).sum().item()"
OF_WHILE = "first = 0\nwhile first < len(data):\nx = batch_at(data, order, first)\ntotal += x.sum()\nfirst += size"
OF_HELPER = "for first in range(0, len(data), size):\ntotal += value(data, order, first)"
HELPER = """\
def value(data, order, first):
    return model(batch_at(data, order, first)).sum().item()


def evaluate("""


def called(evaluation: str) -> str:
    loop, *rest = evaluation.split("\n")
    lines = [loop, *rest] if not loop.startswith("first") else [f"{loop}; k = 0", *rest]
    depth = [8 if line.startswith(("for", "while", "first =")) else 12 for line in lines]
    body = "\n".join(" " * deep + line for deep, line in zip(depth, lines))
    text = CALLED.replace("EVALUATION", body)
    return text.replace("def evaluate(", HELPER) if "value(" in evaluation else text


@pytest.mark.parametrize(
    ("evaluation", "expected"),
    [
        (OF_RANGE, "x = rd.data.whole_batches(batch_at)(data, order, first)"),
        (OF_NUMBERS, "x = rd.data.whole_batches(batch_at)(data, order, i * size)"),
        (OF_WHILE, "x = rd.data.whole_batches(batch_at)(data, order, first)"),
        (OF_HELPER, "total += rd.data.whole_batches(value)(data, order, first)"),
    ],
)
def test_an_evaluation_gets_whole_batches_of_a_function(tmp_path: Path, evaluation: str, expected: str) -> None:
    lines = converted(tmp_path, called(evaluation))
    assert expected in lines and "x = batch_at(X, order, first)" in lines
    assert "return data[rd.data.own_part(order[first : first + rd.data.batch_of_ranks(size)])]" in lines
    assert "for first in range(0, len(X), rd.data.batch_of_ranks(size)):" in lines
    assert "for first in range(0, len(data), size):" in lines or evaluation not in (OF_RANGE, OF_HELPER)


def test_a_size_in_a_variable_of_the_evaluation_stays(tmp_path: Path) -> None:
    text = called(OF_RANGE).replace(", size):\n            x", ", step):\n            x")
    lines = converted(tmp_path, text.replace("total, order =", "step = size\n    total, order ="))
    assert "step = size" in lines and "for first in range(0, len(data), step):" in lines
    assert "x = rd.data.whole_batches(batch_at)(data, order, first)" in lines


DRAWN_BY_NEXT = """\
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)


class Settings:
    def __init__(self, values):
        self.__dict__.update(values)


def batches(data, settings):
    for i in range((data["size"] + 1) // settings.batch_size):
        rows = range(data["size"])[i * settings.batch_size : (i + 1) * settings.batch_size]
        yield data["x"][rows], data["y"][rows]


def train(model, optimizer, source, steps):
    model.train()
    for step in range(steps):
        x, y = next(source)
        loss = F.mse_loss(model(x).squeeze(1), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def evaluate(model, source, steps):
    model.eval()
    errors = []
    for step in range(steps):
        x, y = next(source)
        errors.append((model(x).squeeze(1) - y).abs().max().item())
    return np.mean(errors)


def run(model, optimizer, data, tests, settings):
    for epoch in range(2):
        steps = (settings.train_size + 1) // settings.batch_size
        source = batches(data, settings)
        train(model, optimizer, source, steps)
        steps = (settings.test_size + 1) // settings.batch_size
        source = batches(tests, settings)
        print("shown", evaluate(model, source, steps))


teacher = nn.Linear(4, 1)
teacher.eval()
settings = Settings({"batch_size": 6})
x, tests = torch.rand(60, 4), torch.rand(30, 4)
settings.train_size, settings.test_size = len(x), len(tests)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = {"x": x, "y": teacher(x).detach().squeeze(1), "size": 60}
run(model, optimizer, data, {"x": tests, "y": teacher(tests).detach().squeeze(1), "size": 30}, settings)
"""


def test_what_an_evaluation_draws_by_next_is_whole(tmp_path: Path, launcher: Launcher) -> None:
    lines = converted(tmp_path, DRAWN_BY_NEXT)
    assert "source = batches(data, settings)" in lines
    assert "source = rd.data.whole_batches(batches(tests, settings))" in lines
    assert "steps = (settings.train_size + 1) // rd.data.samples_per_step(settings.batch_size)" in lines
    assert "steps = (settings.test_size + 1) // settings.batch_size" in lines
    trains_as_one(tmp_path, DRAWN_BY_NEXT, launcher, world_sizes=(2, 3), rel=1e-5)


TAKEN_APART = """\
import numpy as np
import torch
from torch import nn

torch.manual_seed(0)
np.random.seed(0)
X = np.random.randn(40, 5)
Y = X.sum(1, keepdims=True)
model = nn.Linear(5, 1).double()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)


def batches(*data, size=4):
    for i in range(0, len(data[0]), size):
        yield PARTS


def predictions(x, y):
    with torch.no_grad():
        return np.concatenate([model(torch.tensor(a)).numpy() for a, b in batches(x, y)])


for epoch in range(2):
    order = np.random.permutation(len(X))
    for x, y in batches(X[order], Y[order]):
        loss = nn.functional.mse_loss(model(torch.tensor(x)), torch.tensor(y))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    found = predictions(X[:13], Y[:13])
    print("shown", loss.item(), len(found), np.abs(found - Y[:13]).mean())
"""


@pytest.mark.parametrize("parts", ["(d[i : i + size] for d in data)", "map(lambda d: d[i : i + size], data)"])
def test_a_batch_that_is_made_when_it_is_taken_apart(tmp_path: Path, launcher: Launcher, parts: str) -> None:
    trains_as_one(tmp_path, TAKEN_APART.replace("PARTS", parts), launcher)
