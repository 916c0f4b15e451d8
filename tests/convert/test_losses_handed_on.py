"""A loss on which another function calls backward keeps its gradient where it is also shown."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import conversion

SCRIPT = """\
import math

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.tensorboard import SummaryWriter

torch.manual_seed(0)
writer = SummaryWriter()
loader = DataLoader(TensorDataset(torch.randn(22, 4), torch.randint(0, 3, (22,))), 4, shuffle=True)
model = nn.Linear(4, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
first, second = nn.CrossEntropyLoss(), nn.MultiMarginLoss()


def log(values):
    values = {name: value for name, value in values.items() if value is not None and not math.isnan(value)}
    if len(values) > 0:
        writer.add_scalars("losses", values, 0)


DEFINED


for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        out = model(x)
        STEP
        optimizer.step()
"""
STEP = "def step(loss):\n    loss.backward()"
BRANCHES = """one = None
        if epoch:
            one = first(out, y)
        else:
            one = first(out, 2 - y)
        total = one * 0.5
        total += second(out, y)
        """
FORMS = {
    "a function": (STEP, BRANCHES + 'step(total)\n        log({"one": one})'),
    "a method": (
        "class Engine:\n    def step(self, loss, scale=1.0):\n        (loss * scale).backward()\n\n\nengine = Engine()",
        BRANCHES + 'engine.step(total)\n        log({"one": one})',
    ),
    "two functions": (
        STEP + "\n\n\ndef run(loss):\n    step(loss * 2)",
        BRANCHES + 'run(total)\n        log({"one": one})',
    ),
    "a dict": (
        "def step(losses):\n    sum(losses.values()).backward()",
        'losses = {}\n        losses["one"] = first(out, y)\n        step(losses)\n        log(losses)',
    ),
    "by name": (STEP, BRANCHES + 'step(loss=total)\n        log({"one": one})'),
}


@pytest.mark.parametrize("form", FORMS)
def test_what_is_trained_by_another_function_is_not_reduced_before(tmp_path: Path, form: str) -> None:
    defined, step = FORMS[form]
    result = conversion(tmp_path, SCRIPT.replace("DEFINED", defined).replace("STEP", step))
    lines = [line.strip() for line in result.files[0].text.splitlines()]
    assert not any("= rd.reduce_loss(" in line for line in lines)
    assert any("rd.reduce_loss(one)" in line for line in lines) or result.listed
