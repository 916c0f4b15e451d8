"""Batches that reach a loss through attributes of an object, set in one call or by another function."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import conversion, converted

SCRIPT = """\
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

MASK = torch.ones(5)


def summed(output, target, weight=None):
    loss = F.cross_entropy(output, target, weight=weight, reduction="sum")
    loss /= float(DIVISOR)
    return loss


class Trainer:
    def __init__(self):
        self.net = torch.nn.Linear(4, 3)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)

    def set_input(self, PARAMETERS):
        BODY

    def step(self):
        self.loss = summed(self.net(self.input), self.target)
        self.optimizer.zero_grad()
        self.loss.backward()
        self.optimizer.step()


torch.manual_seed(0)
loader = DataLoader(TensorDataset(torch.randn(64, 4), torch.randint(0, 3, (64,))), batch_size=8)
trainer = Trainer()
for epoch in range(2):
    for x, y in loader:
        GIVEN
        trainer.step()
"""
WAYS = {
    "parameters": ("x, y", "self.input, self.target = x, y", "trainer.set_input(x, y)"),
    "all arguments": ("*inputs", "self.input, self.target = inputs", "trainer.set_input(x, y)"),
    "arguments by index": (
        "*inputs",
        "self.input = inputs[0].float()\n        self.target = inputs[1]",
        "trainer.set_input(x, y)",
    ),
    "arguments one by one": (
        "*inputs",
        "for index, part in enumerate(inputs):\n"
        "            if index == 0:\n                self.input = part\n"
        "            else:\n                self.target = part",
        "trainer.set_input(x, y)",
    ),
    "all keywords": (
        "**batch",
        "self.input = batch['x']\n        self.target = batch['y']",
        "trainer.set_input(x=x, y=y)",
    ),
    "from outside": ("x, y", "pass", "trainer.input, trainer.target = x, y"),
    "from outside, taken apart": ("x, y", "pass", "batch = x, y\n        trainer.input, trainer.target = batch"),
}


def script(way: str, divisor: str) -> str:
    parameters, body, given = WAYS[way]
    text = SCRIPT.replace("DIVISOR", divisor).replace("PARAMETERS", parameters)
    return text.replace("BODY", body).replace("GIVEN", given)


@pytest.mark.parametrize("divisor", ["target.numel()", "torch.numel(target)", "len(target)"])
@pytest.mark.parametrize("way", WAYS)
def test_a_sum_divided_by_the_size_of_a_batch_in_an_attribute_is_a_mean(way: str, divisor: str, tmp_path: Path) -> None:
    text = conversion(tmp_path, script(way, divisor)).files[0].text
    assert "self.loss.backward()" in text
    assert "lr=rd.scaled_lr(0.1)" in text


def test_a_sum_divided_by_the_size_of_something_else_stays_a_sum(tmp_path: Path) -> None:
    text = conversion(tmp_path, script("parameters", "MASK.numel()")).files[0].text
    assert "rd.loss.sum_loss(self.loss).backward()" in text


OPTIONS = """\
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


def summed(output, y, **options):
    loss = F.cross_entropy(output, y, reduction="sum") / options[KEY]
    return min(options["epoch"] / 5, 1.0) * loss


torch.manual_seed(0)
loader = DataLoader(TensorDataset(torch.randn(64, 4), torch.randint(0, 3, (64,))), batch_size=8)
model = torch.nn.Linear(4, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        loss = summed(model(x), y, epoch=epoch + 1, scale=3.0, size=y.numel())
        loss.backward()
        optimizer.step()
"""


def test_one_of_all_keywords_is_what_the_call_gives(tmp_path: Path) -> None:
    text = conversion(tmp_path, OPTIONS.replace("KEY", '"size"')).files[0].text
    assert "lr=rd.scaled_lr(0.1)" in text
    assert "rd.loss.sum_loss(" not in text


ITERATOR = """\
import argparse

import torch
from torch import nn
from torchtext import data


class Batches(data.Iterator):
    def create_batches(self):
        self.batches = list(self.data())


def make(options):
    return Batches(options.path, batch_size=4)


def train(model, options):
    for batch in options.train:
        loss = nn.functional.mse_loss(model(batch.x), batch.y)
        options.optimizer.zero_grad()
        loss.backward()
        options.optimizer.step()


parser = argparse.ArgumentParser()
parser.add_argument("--path", default="a.csv")
options = parser.parse_args()
model = nn.Linear(3, 1)
options.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
options.train = make(options)
train(model, options)
"""


def test_an_iterator_of_a_library_that_the_options_hold_gives_its_batches_in_turn(tmp_path: Path) -> None:
    assert "for batch in rd.distribute_loader(options.train):" in converted(tmp_path, ITERATOR)


def test_options_that_are_set_to_one_of_two_are_not_known(tmp_path: Path) -> None:
    text = ITERATOR.replace("train(model, options)\n", "options.train = torch.rand(4, 3)\ntrain(model, options)\n")
    assert conversion(tmp_path, text).refusals
