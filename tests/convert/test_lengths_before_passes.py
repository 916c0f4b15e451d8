"""A number of batches that is taken before a training, and divides what a pass over all samples adds up."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import conversion, converted

TRAINING = """\
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

loader = DataLoader(TensorDataset(torch.randn(16, 3), torch.randn(16, 1)), batch_size=4)
model = nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    batches = len(loader)
    running = 0.0
    for x, y in loader:
        loss = F.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        running += loss.item()
    TRAINED
    model.eval()
    total = 0.0
    with torch.no_grad():
        for x, y in loader:
            total += F.mse_loss(model(x), y).item()
    print(total / batches)
"""
BEFORE = """\
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Sums:
    def __init__(self):
        self.total = 0

    def add(self, x):
        self.total += x


def added_up(batches):
    total = 0
    for x, _ in batches:
        total += x.mean(0)
    return total


loader = DataLoader(TensorDataset(torch.randn(16, 3), torch.randn(16, 1)), batch_size=4)
model = nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
total, kept, sums = torch.zeros(3), [], Sums()
PASS
for epoch in range(2):
    total = 0
    for x, y in loader:
        loss = F.mse_loss(model(x - mean), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total = total + loss.item()
    print(total / len(loader))
"""
PASSES = {
    "a sum": "for x, _ in loader:\n    total += x.mean(0)\nmean = total / len(loader)",
    "a sum in full": "for x, _ in loader:\n    total = total + x.mean(0)\nmean = total.div(len(loader))",
    "in place": "for x, _ in loader:\n    total.add_(x.mean(0))\ntotal /= len(loader)\nmean = total",
    "a list": "for x, _ in loader:\n    kept.append(x.mean(0))\nmean = sum(kept) / len(loader)",
    "an object": "for x, _ in loader:\n    sums.add(x.mean(0))\nmean = sums.total / len(loader)",
    "a generator": "mean = sum(x.mean(0) for x, _ in loader) / len(loader)",
    "in the pass": "for x, _ in loader:\n    total += x.mean(0) / len(loader)\nmean = total",
    "by another name": "for x, _ in loader:\n    total += x.mean(0)\nresult = total\nmean = result * (1 / len(loader))",
    "in a function": "mean = added_up(loader) / len(loader)",
    "a part": (
        "most = len(loader) // 2\nfor i, (x, _) in enumerate(loader):\n    if i < most:\n        total += x.mean(0)\n"
        "mean = total"
    ),
}
DRAWN = """\
import torch
import torch.nn.functional as F
from torch import nn

settings = {"batch_size": 4, "log": 4}
data, targets = torch.randn(16, 3), torch.randn(16, 1)


def parts(*tensors, **options):
    size = options.get("batch_size", settings["batch_size"])
    for i in range(0, len(tensors[0]), size):
        yield tuple(tensor[i : i + size] for tensor in tensors)


model = nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    count = len(data) // settings["KEY"] + 1
    total = 0.0
    for x, y in parts(data, targets):
        loss = F.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
    print(total / count)
"""


def test_a_length_for_the_pass_alone_is_that_of_all_batches(tmp_path: Path) -> None:
    assert "batches = len(rd.evaluation.same_batches(loader))" in converted(
        tmp_path, TRAINING.replace("TRAINED", "pass")
    )


def test_a_length_for_the_training_and_the_pass_is_left_to_the_user(tmp_path: Path) -> None:
    result = conversion(tmp_path, TRAINING.replace("TRAINED", "print(running / batches)"))
    assert "batches = len(loader)" in result.files[0].text
    (finding,) = (f for f in result.findings if f.code == "RF114" and not f.edits)
    assert "its length that of the training" in finding.message


def test_a_length_that_a_function_reads_too_stays_as_it_is(tmp_path: Path) -> None:
    loop = "for epoch in range(2):\n"
    text = TRAINING.replace(f"{loop}    batches = len(loader)\n", f"batches = len(loader)\n{loop}")
    factor = "def factor(step):\n    return 1 - step / (2 * batches)\n\n\nloader ="
    result = conversion(tmp_path, text.replace("loader =", factor, 1).replace("TRAINED", "print(factor(epoch))"))
    assert "batches = len(loader)" in result.files[0].text


@pytest.mark.parametrize("form", PASSES)
def test_a_length_is_that_of_what_it_divides(tmp_path: Path, form: str) -> None:
    lines = converted(tmp_path, BEFORE.replace("PASS", PASSES[form]))
    assert sum("len(rd.evaluation.same_batches(loader))" in line for line in lines) == 1
    assert "print(total / len(loader))" in lines


def test_a_length_for_a_schedule_is_that_of_the_training(tmp_path: Path) -> None:
    text = BEFORE.replace("PASS", f"{PASSES['in a function']}\nschedule = CosineAnnealingLR(optimizer, len(loader))")
    text = text.replace("for epoch", "def train(epoch):").replace(" in range(2):", "")
    text += "\n\nfor epoch in range(2):\n    train(epoch)\n    schedule.step()\n"
    lines = converted(tmp_path, f"from torch.optim.lr_scheduler import CosineAnnealingLR\n{text}")
    assert "schedule = CosineAnnealingLR(optimizer, len(loader))" in lines


def test_a_length_that_divides_what_a_pass_and_a_training_keep_is_left_to_the_user(tmp_path: Path) -> None:
    text = BEFORE.replace("PASS", PASSES["a list"]).replace("total = 0\n    for", "kept = []\n    for")
    text = text.replace("total = total + loss.item()", "kept.append(loss.item())")
    result = conversion(tmp_path, text.replace("print(total /", "print(sum(kept) /"))
    assert "len(rd." not in result.files[0].text
    assert len([f for f in result.findings if f.code == "RF114" and not f.edits]) == 2


def test_steps_by_a_batch_size_that_is_not_found_are_listed(tmp_path: Path) -> None:
    result = conversion(tmp_path, DRAWN.replace("KEY", "batch_size"))
    assert any("can be the number of steps of one process" in finding.message for finding in result.listed)


def test_samples_divided_by_something_else_are_not_listed(tmp_path: Path) -> None:
    result = conversion(tmp_path, DRAWN.replace("KEY", "log"))
    assert not any("number of steps of one process" in finding.message for finding in result.listed)
