"""A data set that a training draws again in each epoch has the same samples, in one order, on all processes."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import converted

SCRIPT = """\
import random

import numpy as np
import torch
from torch import nn, optim
from torch.utils.data import DataLoader, Dataset, Subset, random_split


class Items(Dataset):
    def __init__(self, items):
        self.items = items

    def mix(self):
        random.shuffle(self.items)

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        return torch.tensor([float(self.items[index])])


    def order(self):
        self.items = np.random.permutation(self.items)

    def restart(self, epoch):
        self.order()


class Epochs:
    def __init__(self, data):
        self.data = data

    def start(self):
        self.data.order()


class Mixed(Items):
    def __init__(self, items):
        items = items * 2
        random.shuffle(items)
        super().__init__(items)


def train(items):
    {line}
    for x in DataLoader({data}, 2):
        optimizer.zero_grad()
        model(x).pow(2).mean().backward()
        optimizer.step()


items = list(range(8))
data = Items(items)
mixed = Mixed(items)
loader = DataLoader(data, 2)
epochs = Epochs(data)
model = nn.Linear(1, 1)
optimizer = optim.SGD(model.parameters(), lr=0.1)
for epoch in range(3):
    train(items)
"""
DRAWN = {
    "made in an order of its own": ("pass", "Mixed(items)", "rd.data.draw_together(Mixed, items)"),
    "made of a list that is shuffled": (
        "random.shuffle(items)",
        "Items(items)",
        "rd.data.draw_together(random.shuffle, items)",
    ),
    "shuffled by itself": ("data.mix()", "data", "rd.data.draw_together(random.shuffle, self.items)"),
    "of a method that takes an order": ("data.order()", "data", "rd.data.draw_together(data.order)"),
    "by a method in a method": ("data.restart(0)", "data", "rd.data.draw_together(data.restart, 0)"),
    "through a loader": ("loader.dataset.order()", "data", "rd.data.draw_together(loader.dataset.order)"),
    "by another object": ("epochs.start()", "data", "rd.data.draw_together(self.data.order)"),
    "some of the samples": (
        "chosen = np.random.permutation(8)[:6]",
        "Subset(data, chosen)",
        "rd.data.draw_together(np.random.permutation, 8)[:6]",
    ),
    "one part": (
        "part, rest = random_split(data, [6, 2])",
        "part",
        "rd.data.draw_together(random_split, data, [6, 2])",
    ),
}


@pytest.mark.parametrize("kind", DRAWN)
def test_a_data_set_drawn_again_is_drawn_together(tmp_path: Path, kind: str) -> None:
    line, data, expected = DRAWN[kind]
    lines = converted(tmp_path, SCRIPT.format(line=line, data=data))
    (found,) = [each for each in lines if "draw_together" in each]
    assert expected in found


@pytest.mark.parametrize(
    "line, data",
    [
        ("pass", "mixed"),
        ("pass", "Items(items)"),
        ("random.shuffle(list(items))", "data"),
        ("items = items[::-1]", "Items(items)"),
    ],
)
def test_a_data_set_that_is_not_drawn_again_is_left(tmp_path: Path, line: str, data: str) -> None:
    assert not any("draw_together" in each for each in converted(tmp_path, SCRIPT.format(line=line, data=data)))


TRAINER = """\
import random

import torch
from somewhere import make
from torch import nn


class Trainer:
    def __init__(self, model):
        self.model, self.loader = model, make("train")
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def run(self):
        for epoch in range(2):
            print(self.one_epoch(epoch))

    def one_epoch(self, epoch):
        total = 0.0
        for x, y in self.loader:
            loss = nn.functional.mse_loss(self.model(x), y)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            total += loss.item()
        print("row", x[random.randint(0, 3)].shape)
        return total


Trainer(nn.Linear(4, 1)).run()
"""


def test_an_epoch_of_a_trainer_that_has_the_loader_draws_no_data_set(tmp_path: Path) -> None:
    lines = converted(tmp_path, TRAINER)
    assert not any("draw_together" in each for each in lines)
    assert "self.loader = rd.distribute_loader(self.loader)" in lines


AFTER = """\
import random

import numpy as np
import torch
from sklearn.model_selection import train_test_split
from torch import nn, optim
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset, random_split

torch.manual_seed(0)
data = TensorDataset(torch.randn(24, 4))


class Mixed(Dataset):
    def __init__(self, number):
        self.items = list(range(number))
        random.shuffle(self.items)

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        return (torch.ones(4) * self.items[index],)


def fit(data):
    model = nn.Linear(4, 1)
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    for (x,) in DataLoader(data, 4, shuffle=True):
        optimizer.zero_grad()
        model(x).pow(2).mean().backward()
        optimizer.step()


def stage():
    part, rest = random_split(data, [20, 4])
    fit(part)


{trained}
"""
TRAINED = {
    "a function again": ("stage()\nstage()", "part, rest = rd.data.draw_together(random_split, data, [20, 4])"),
    "a list": (
        "fit(data)\nrows = list(range(24))\nrandom.shuffle(rows)\nfit(Subset(data, rows[:20]))",
        "rd.data.draw_together(random.shuffle, rows)",
    ),
    "numbers": (
        "fit(data)\norder = np.random.permutation(24)\nfit(Subset(data, order[:20]))",
        "order = rd.data.draw_together(np.random.permutation, 24)",
    ),
    "an object": ("fit(data)\nfit(Mixed(12))", "fit(rd.data.draw_together(Mixed, 12))"),
    "by a library": (
        "fit(data)\nrows, held = train_test_split(range(24))\nfit(Subset(data, rows))",
        "rows, held = rd.data.draw_together(train_test_split, range(24))",
    ),
}


@pytest.mark.parametrize("kind", TRAINED)
def test_the_data_of_a_second_training_are_drawn_together(tmp_path: Path, kind: str) -> None:
    trained, expected = TRAINED[kind]
    lines = converted(tmp_path, AFTER.format(trained=trained))
    assert [line for line in lines if "draw_together" in line] == [expected]


def test_data_drawn_before_the_only_training_are_left(tmp_path: Path) -> None:
    lines = converted(tmp_path, AFTER.format(trained="stage()"))
    assert not any("draw_together" in line for line in lines)
