"""Figures of an epoch that are divided by a computed number of steps: several processes make a part of these steps."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import conversion
from convert.training_runs import trains_as_one
from verify.projects.launch import Launcher

from retrofit.training.steps.counted.step_limits import step_limits

SCRIPT = """\
import math

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.randn(25, 4), torch.randint(0, 3, (25,)))
held_out = TensorDataset(torch.randn(9, 4), torch.randint(0, 3, (9,)))
batch_size = 6
loader = DataLoader(data, batch_size, drop_last=True)
held_out_loader = DataLoader(held_out, batch_size)
model = nn.Linear(4, 3)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def evaluate():
    total = 0.0
    with torch.no_grad():
        for x, y in held_out_loader:
            total += criterion(model(x), y).item()
    return total / math.ceil(len(held_out) / batch_size)


STEPS
for epoch in range(2):
    LIST
    total = 0.0
    for step, (x, y) in enumerate(loader):
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
        total += loss.item()
        losses[step] = loss.item()
    print(evaluate(), SHOWN)
"""
STEPS = {
    "len(data) // batch_size + 1": "len(data) // rd.data.samples_per_step(batch_size) + 1",
    "math.ceil(len(data) / batch_size)": "math.ceil(len(data) / rd.data.samples_per_step(batch_size))",
    "int(np.ceil(len(loader.dataset) / float(batch_size)))": (
        "int(np.ceil(len(loader.dataset) / float(rd.data.samples_per_step(batch_size))))"
    ),
    "len(data) // batch_size + (len(data) % batch_size > 0)": (
        "len(data) // rd.data.samples_per_step(batch_size) + (len(data) % rd.data.samples_per_step(batch_size) > 0)"
    ),
    "(len(data) + batch_size - 1) // batch_size": (
        "(len(data) + rd.data.samples_per_step(batch_size) - 1) // rd.data.samples_per_step(batch_size)"
    ),
}


def script_of(steps: str, shown: str = "total / steps", made: str = "losses = {}") -> str:
    return SCRIPT.replace("STEPS", steps).replace("SHOWN", shown).replace("LIST", made)


@pytest.mark.parametrize("steps", [*STEPS])
@pytest.mark.parametrize("shown", ["total / steps", "np.sum(losses) / steps", "losses.mean()"])
def test_the_number_of_steps_is_that_of_all_ranks(steps: str, shown: str, tmp_path: Path) -> None:
    made = "losses = np.zeros(steps)" if "losses" in shown else "losses = {}"
    result = conversion(tmp_path, script_of(f"steps = {steps}", shown, made))
    assert not result.refusals and not result.listed
    text = result.files[0].text
    assert f"steps = {STEPS[steps]}\n" in text
    assert "return total / math.ceil(len(held_out) / batch_size)\n" in text


@pytest.mark.parametrize("steps", ["len(loader)", "4", "len(held_out) // 5"])
def test_other_numbers_stay(steps: str, tmp_path: Path) -> None:
    result = conversion(tmp_path, script_of(f"steps = {steps}"))
    assert "samples_per_step" not in result.files[0].text


def test_a_script_that_trains_under_its_name_has_no_other_phase(tmp_path: Path) -> None:
    body = "".join(f"    {line}\n" for line in script_of("steps = len(data) // batch_size + 1").splitlines())
    result = conversion(tmp_path, f'if __name__ == "__main__":\n{body}')
    assert f"steps = {STEPS['len(data) // batch_size + 1']}\n" in result.files[0].text


def test_where_the_same_code_evaluates_it_is_listed(tmp_path: Path) -> None:
    before, loop = script_of("").split("for epoch in range(2):\n")
    body = loop.replace("print(evaluate(), total / steps)", "print(total / (len(part.dataset) // batch_size + 1))")
    body = body.replace("losses = {}\n", "losses = {}\n    part = loader if is_training else held_out_loader\n")
    body = body.replace("enumerate(loader)", "enumerate(part)").replace("total += loss", "total += loss")
    body = body.replace("        optimizer.zero_grad()\n", "").replace("        optimizer.step()\n", "")
    body = body.replace(
        "        loss.backward()\n",
        "        if is_training:\n            optimizer.zero_grad()\n            loss.backward()\n"
        "            optimizer.step()\n",
    )
    script = before + "def run(is_training):\n" + body + "\n\nfor epoch in range(2):\n    run(True)\n    run(False)\n"
    result = conversion(tmp_path, script)
    text = result.files[0].text
    assert "samples_per_step" not in text
    assert any("the number of steps that one process would make" in finding.message for finding in result.listed)


DRAWN = """\
import math

import numpy as np
import torch
from torch import nn

x, y = torch.randn(25, 4), torch.randint(0, 3, (25,))
batch_size = 4
model = nn.Linear(4, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
generator = np.random.RandomState(0)
BEFORE
for epoch in range(2):
    total = 0.0
    for step in range(STEPS):
        rows = generator.choice(len(x), batch_size)
        loss = nn.functional.cross_entropy(model(x[rows]), y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
    print("shown", epoch, step, total / (step + 1))
"""
OF_ALL = "rd.data.samples_per_step(batch_size)"


@pytest.mark.parametrize(
    "steps",
    ["len(x) // batch_size", "x.shape[0] // batch_size", "math.ceil(len(x) / batch_size)", "int(len(x) / batch_size)"],
)
@pytest.mark.parametrize("is_named", [False, True])
def test_an_epoch_of_drawn_batches_has_the_steps_of_all_ranks(steps: str, is_named: bool, tmp_path: Path) -> None:
    script = DRAWN.replace("BEFORE", f"number = {steps}" * is_named).replace("STEPS", "number" if is_named else steps)
    result = conversion(tmp_path, script)
    assert not result.refusals and not step_limits(result.project)
    text = result.files[0].text
    assert steps.replace("batch_size", OF_ALL) in text and "own_batch_size" not in text


def test_drawn_batches_in_two_processes(tmp_path: Path, launcher: Launcher) -> None:
    script = DRAWN.replace("BEFORE", "torch.manual_seed(0)").replace("STEPS", "len(x) // batch_size")
    script = script.replace("x, y =", "torch.manual_seed(0)\nx, y =")
    trains_as_one(tmp_path, script, launcher, rel=1e-5)
