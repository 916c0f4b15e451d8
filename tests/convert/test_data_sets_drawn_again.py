"""A data set that a training draws again in each epoch has the same samples, in one order, on all processes."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.additions_of import write_converted
from convert.conversion import conversion, converted
from convert.training_runs import trains_as_one
from verify.projects.launch import Launcher

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
from sklearn.model_selection import KFold, ShuffleSplit, train_test_split
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
    "folds": (
        "for rows, _ in ShuffleSplit(3).split(range(24)):\n    fit(Subset(data, rows))",
        "for rows, _ in rd.data.draw_together(ShuffleSplit(3).split, range(24)):",
    ),
    "folds of an object": (
        "folds = KFold(3, shuffle=True)\nfor fold, (rows, _) in enumerate(folds.split(range(24))):\n"
        "    fit(Subset(data, rows))",
        "for fold, (rows, _) in enumerate(rd.data.draw_together(folds.split, range(24))):",
    ),
}


@pytest.mark.parametrize("kind", TRAINED)
def test_the_data_of_a_second_training_are_drawn_together(tmp_path: Path, kind: str) -> None:
    trained, expected = TRAINED[kind]
    lines = converted(tmp_path, AFTER.format(trained=trained))
    assert [line for line in lines if "draw_together" in line] == [expected]


@pytest.mark.parametrize("folds", ["ShuffleSplit(3, random_state=0)", "KFold(3)", "KFold(3, shuffle=False)"])
def test_folds_that_are_the_same_everywhere_are_left(tmp_path: Path, folds: str) -> None:
    trained = f"folds = {folds}\nfor rows, _ in folds.split(range(24)):\n    fit(Subset(data, rows))"
    lines = converted(tmp_path, AFTER.format(trained=trained))
    assert not any("draw_together" in line for line in lines)


FOLDS = """\
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset


def folds(size, number):
    for _ in range(number):
        yield np.random.permutation(size)[:20]


np.random.seed(0)
torch.manual_seed(0)
data = TensorDataset(torch.randn(24, 4, dtype=torch.float64))
model = nn.Linear(4, 1, dtype=torch.float64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for rows in folds(24, 3):
    for (x,) in DataLoader(Subset(data, rows.tolist()), 4):
        loss = model(x).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print("shown", loss.item())
"""


def test_folds_that_are_drawn_one_by_one_are_those_of_one_process(tmp_path: Path, launcher: Launcher) -> None:
    trains_as_one(tmp_path, FOLDS, launcher)


def test_each_entry_of_a_generator_is_drawn_together(tmp_path: Path, launcher: Launcher) -> None:
    write_converted(tmp_path, conversion(tmp_path, FOLDS))
    path = tmp_path / "train.py"
    text = path.read_text().replace("rd.data.draw_together(np.random.permutation, size)", "np.random.permutation(size)")
    text = text.replace("in folds(24, 3):", "in rd.data.draw_together(folds, 24, 3):\n    print('fold', rows.sum())")
    path.write_text(text)
    assert "draw_together(folds" in text
    one = launcher.run(tmp_path, "train.py", [])
    two = launcher.run(tmp_path, "train.py", [], world_size=2, RETROFIT_BATCH="global")
    folds = [[line for line in "".join(run["outputs"]).splitlines() if line.startswith("fold")] for run in (one, two)]
    assert len(folds[0]) == 3
    assert folds[0] == folds[1]


def test_data_drawn_before_the_only_training_are_left(tmp_path: Path) -> None:
    lines = converted(tmp_path, AFTER.format(trained="stage()"))
    assert not any("draw_together" in line for line in lines)
