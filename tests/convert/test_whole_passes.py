"""Passes over the training loader that do not train: all ranks have what one process has."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import conversion, converted

from retrofit.convert.stages import show

SCRIPT = """\
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Scaler:
    def fit(self, x):
        self.mean, self.std = x.mean(0), x.std(0)

    def add(self, x):
        self.mean, self.std = self.mean + x.sum(0), torch.maximum(self.std, x.amax(0))

    def fit_again(self, x):
        self.mean = x.mean()

    def transform(self, x):
        return (x - self.mean) / self.std


def errors(model, loader):
    model.eval()
    pairs = [0]
    with torch.no_grad():
        for x, y in loader:
            pairs += list(zip(y[:, 0].tolist(), (model(x) - y).abs().mean(1).tolist()))
    return pairs


def center(model, loader):
    model.eval()
    number, total = 0, torch.zeros(2)
    with torch.no_grad():
        for x, y in loader:
            number += len(x)
            total += torch.sum(model(x), dim=0)
    return total / number


loader = DataLoader(TensorDataset(torch.randn(17, 4), torch.randn(17, 2)), batch_size=4, shuffle=True)
model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler, goal = Scaler(), torch.zeros(2)
scaler.fit(torch.zeros(3, 4))
BEFORE
for epoch in range(2):
    for x, y in loader:
        loss = (model(scaler.transform(x)) - y - goal).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    AFTER
"""
STEP = """\
    loss = (model(x) - y).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
WHOLE = {
    "a first batch": ("scaler.fit(next(iter(loader))[0])", "pass"),
    "all samples": ("scaler.fit(torch.cat([x for x, _ in loader]))", "pass"),
    "a loop": ("for x, y in loader:\n    scaler.fit(x)", "pass"),
    "an evaluation": ("pass", "print(np.percentile([e for _, e in errors(model, loader)[1:]], 95))"),
}
BY_HAND = """\
for x, y in loader:
    slopes = torch.autograd.grad((model(x) - y).square().mean(), list(model.parameters()))
    for parameter, slope in zip(model.parameters(), slopes):
        parameter.data -= 0.1 * slope
"""
WHOLE |= {
    "a running sum": ("for x, _ in loader:\n    scaler.add(x)", "pass"),
    "a library's scaler": (
        "from sklearn.preprocessing import StandardScaler\nscaler = StandardScaler()\n"
        "for x, _ in loader:\n    scaler.partial_fit(x.numpy())",
        "pass",
    ),
    "samples of another loader": (
        "kept = []\nfor x, y in loader:\n    kept += list(zip(x, y))\n"
        "for x, y in DataLoader(kept, batch_size=4, shuffle=True):\n" + STEP,
        "pass",
    ),
    # all processes have the same gradients, and set the same weights
    "updates by hand": (BY_HAND, "pass"),
}
RUNNING = """\
def run(loader):
    total = 0
    for x, y in loader:
        total = total + x.mean(0)
        SENT
goal = DRAWN
"""
BATCHES = """\
class Batches:
    def __init__(self, items):
        self.items, self.mean = items, 0
        for x, y in items:
            self.mean = self.mean + x.mean(0)
    def __iter__(self):
        DRAWN
batches = Batches(loader)
for x, y in batches:
    loss = (model(x - batches.mean) - y).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def running(sent: str, drawn: str) -> tuple[str, str]:
    return RUNNING.replace("SENT", sent).replace("DRAWN", f"{drawn}[:2]"), "pass"


GIVEN = {
    "sums one by one": running("yield total", "list(run(loader))[-1]"),
    "means one by one": running("yield x.mean(0)", "sum(run(loader))"),
    "a mean in a queue": running(
        "pass\n    sent.put(total)", "(sent := __import__('queue').Queue(), run(loader), sent.get())[-1]"
    ),
    "a mean before batches": (
        "def run(loader):\n    mean = sum(x.mean(0) for x, _ in loader)\n    for x, y in loader:\n"
        f"        yield x - mean, y\nfor x, y in run(loader):\n{STEP}",
        "pass",
    ),
    "a mean of an iterator": (BATCHES.replace("DRAWN", "return iter(self.items)"), "pass"),
    "a mean of a generator": (BATCHES.replace("DRAWN", "for batch in self.items:\n            yield batch"), "pass"),
}
# The pass is for a training, or may be: each process draws its part, as in the training, and the plan says so.
FEEDING = {
    "a list": f"kept = []\nfor x, y in loader:\n    kept.append((x, y))\nfor x, y in kept:\n{STEP}",
    "a dict": (
        "kept = {}\nfor i, (x, y) in enumerate(loader):\n    kept[i] = (x, y)\n"
        f"for i in range(len(kept)):\n    x, y = kept[i]\n{STEP}"
    ),
    "a filled tensor": (
        "xs, ys = torch.zeros(17, 4), torch.zeros(17, 2)\nfor i, (x, y) in enumerate(loader):\n"
        "    xs[4 * i : 4 * i + 4] = x\n    ys[4 * i : 4 * i + 4] = y\n"
        f"for i in range(4):\n    x, y = xs[4 * i : 4 * i + 4], ys[4 * i : 4 * i + 4]\n{STEP}"
    ),
    "a memory": (
        "import random\nclass Memory:\n    def __init__(self):\n        self.items = []\n"
        "    def add(self, x, y):\n        self.items.append((x, y))\n"
        "    def draw(self):\n        return random.choice(self.items)\n"
        "memory = Memory()\nfor x, y in loader:\n    memory.add(x, y)\n"
        f"for _ in range(4):\n    x, y = memory.draw()\n{STEP}"
    ),
    "means of samples": (
        "kept = []\nfor x, y in loader:\n    kept.append((x.mean(1, keepdim=True).expand(-1, 4), y))\n"
        f"for x, y in kept:\n{STEP}"
    ),
    "an object of own batches": (
        "class Batches:\n    def __init__(self, items):\n        self.items = items\n"
        "    def __iter__(self):\n        return iter(self.items)\n"
        f"kept = []\nfor batch in loader:\n    kept.append(batch)\nfor x, y in Batches(kept):\n{STEP}"
    ),
    "a trainer of a library": (
        "from trainers import Trainer\ntrainer = Trainer(model, optimizer)\n"
        "for x, y in loader:\n    trainer.train_on_batch(x, y)"
    ),
    "a class derived from one": (
        "from trainers import Trainer\nclass Own(Trainer):\n    pass\nown = Own(model, optimizer)\n"
        "for x, y in loader:\n    own.update(x, y)"
    ),
    "a list for a trainer of a library": (
        "from trainers import Trainer\nkept = []\nfor x, y in loader:\n    kept.append((x, y))\n"
        "Trainer(model, optimizer).fit(kept)"
    ),
    "a single batch": f"x, y = next(iter(loader))\n{STEP.replace('    ', '')}",
    "batches handed on to something else": (
        "def run(loader):\n    for batch in loader:\n        yield batch\nfor x, y in run(loader):\n    print(len(x))"
    ),
    "a function that calls itself": (
        f"def run(number):\n    x, y = next(iter(loader))\n{STEP}    if number:\n        run(number - 1)\nrun(3)"
    ),
    "a batch for a library": (
        "from trainers import find_rate\nx, y = next(iter(loader))\nfind_rate(model, optimizer, x, y)"
    ),
    "an optimizer in an attribute": (
        "from trainers import Trainer\nclass Own(Trainer):\n    def __init__(self):\n        super().__init__(model)\n"
        "        self.chosen = optimizer\nown = Own()\nfor x, y in loader:\n    own.update(x, y)"
    ),
    "a function of a library": "from trainers import one\nfor batch in loader:\n    one(model, batch, optimizer)",
    "such a function with its arguments": (
        "from functools import partial\nfrom trainers import one\nrun = partial(one, model, optimizer)\n"
        "for batch in loader:\n    run(batch)"
    ),
    "a step by another name": (
        "from trainers import gradients\nrun = optimizer.step\nfor x, y in loader:\n    gradients(model, x, y)\n"
        "    run()"
    ),
    "a step in a comprehension": (
        "def run(x, y):\n    optimizer.zero_grad()\n    loss = (model(x) - y).square().mean()\n    loss.backward()\n"
        "    optimizer.step()\n    return loss.item()\nlosses = [run(x, y) for x, y in loader]"
    ),
}
LEFT = {
    "a list for a training": (f"kept = [(x, y) for x, y in loader]\nfor x, y in kept:\n{STEP}", "pass"),
    "a generator for a training": (
        f"def run(loader):\n    for x, y in loader:\n        yield x * 2, y\nfor x, y in run(loader):\n{STEP}",
        "pass",
    ),
    "an iterator that never ends": (
        "def run(loader):\n    while True:\n        yield from loader\ndrawn = run(loader)\n"
        f"for _ in range(5):\n    x, y = next(drawn)\n{STEP}",
        "pass",
    ),
    "a loader around another": (
        "class Twice:\n    def __init__(self, items):\n        self.items = items\n    def __iter__(self):\n"
        f"        for x, y in self.items:\n            yield x * 2, y\nfor x, y in Twice(loader):\n{STEP}",
        "pass",
    ),
    "a shape": ("width = next(iter(loader))[0].shape[-1]", "pass"),
    "names of shapes": ("a, b = next(iter(loader))\nwidth, height = a.size(1), b.shape[1]", "pass"),
    "training alone": ("pass", "pass"),
}


def made(form: tuple[str, str]) -> str:
    before, after = form
    return SCRIPT.replace("BEFORE", before).replace("AFTER", after)


@pytest.mark.parametrize("form", WHOLE)
def test_every_rank_draws_all_batches(tmp_path: Path, form: str) -> None:
    lines = converted(tmp_path, made(WHOLE[form]))
    assert sum("rd.evaluation.same_batches(loader)" in line for line in lines) == 1
    assert "loader = rd.distribute_loader(loader)" in lines
    assert not any("batch_mean" in line for line in lines)


@pytest.mark.parametrize("form", GIVEN)
def test_what_a_function_gives_one_by_one_is_of_all_batches(tmp_path: Path, form: str) -> None:
    lines = converted(tmp_path, made(GIVEN[form]))
    assert sum("rd.evaluation.same_batches(" in line for line in lines) == 1


@pytest.mark.parametrize("form", LEFT)
def test_nothing_else_draws_them(tmp_path: Path, form: str) -> None:
    assert not any("same_batches" in line for line in converted(tmp_path, made(LEFT[form])))


@pytest.mark.parametrize("form", FEEDING)
def test_what_a_training_gets_is_each_rank_s_part(
    tmp_path: Path, form: str, capsys: pytest.CaptureFixture[str]
) -> None:
    result = conversion(tmp_path, made((FEEDING[form], "pass")))
    (text,) = (file.text for file in result.files if file.path.name == "train.py")
    assert "loader = rd.distribute_loader(loader)" in text and "same_batches" not in text
    show(result)
    assert "each process draws its own part of the samples here" in capsys.readouterr().err


def test_a_figure_of_all_samples_is_not_listed(tmp_path: Path) -> None:
    assert not conversion(tmp_path, made(WHOLE["an evaluation"])).listed


def test_sums_over_the_batches_become_those_of_all_ranks_once(tmp_path: Path) -> None:
    lines = converted(tmp_path, made(("goal = center(model, loader)", "pass")))
    assert "total += torch.sum(model(x), dim=0)" in lines
    assert "number, total = rd.sum_over_ranks(number, total)" in lines
