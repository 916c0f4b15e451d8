"""Batches that a helper draws from several loaders, or in a loop of its own, and hands to the training."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import converted

SCRIPT = """\
import random

import torch
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
data = TensorDataset(torch.randn(16, 3))
first = DataLoader(data, 4, shuffle=True)
second = DataLoader(data, 2, shuffle=True)
model = nn.Linear(3, 1)
optimizer = optim.SGD(model.parameters(), lr=0.1)


def learn(x):
    optimizer.zero_grad()
    model(x).mean().backward()
    optimizer.step()


"""
CLASS = """\
class Mixed:
    def __init__(self):
        self.loaders, self.iterators = [], []
        for size in (4, 2):
            loader = DataLoader(data, size, shuffle=True)
            self.loaders.append(loader)
            self.iterators.append(iter(loader))

    def batch(self):
        parts = []
        for number, iterator in enumerate(self.iterators):
            try:
                (x,) = next(iterator)
            except StopIteration:
                self.iterators[number] = iter(self.loaders[number])
                (x,) = next(self.iterators[number])
            parts.append(x)
        return torch.cat(parts)


mixed = Mixed()
while True:
    learn(mixed.batch())
"""
UNTIL_ONE_COMES = """\
class Source:
    def __init__(self, loader):
        self.loader, self.iterator = loader, iter(loader)

    def fetch(self):
        while True:
            try:
                return next(self.iterator)[0]
            except StopIteration:
                self.iterator = iter(self.loader)


source = Source(first)
for step in range(9):
    learn(source.fetch())
"""
SEVERAL_AT_ONCE = """\
batches = iter(first)


def group(number):
    parts = []
    for _ in range(number):
        parts.append(next(batches)[0])
    return parts


for epoch in range(1):
    for x in group(4):
        learn(x)
"""
COMPREHENSION = """\
iterators = [iter(loader) for loader in (first, second)]
for step in range(4):
    learn(torch.cat([next(iterator)[0] for iterator in iterators]))
"""
DICT = """\
iterators = {"first": iter(first), "second": iter(second)}
for step in range(4):
    parts = {name: next(iterator)[0] for name, iterator in iterators.items()}
    learn(torch.cat(list(parts.values())))
"""
BY_CHANCE = """\
loaders = {"first": first, "second": second}
iterators = {name: iter(loader) for name, loader in loaders.items()}


def draw():
    name = random.choice(list(loaders))
    try:
        return next(iterators[name])
    except StopIteration:
        iterators[name] = iter(loaders[name])
        return next(iterators[name])


for step in range(9):
    (x,) = draw()
    learn(x)
"""
FIRST, SECOND = (f"{name} = rd.distribute_loader({name})" for name in ("first", "second"))
FORMS = {
    "iterators in a list of an object": (CLASS, ["loader = rd.distribute_loader(loader)"]),
    "the loop of a helper": (UNTIL_ONE_COMES, [FIRST]),
    "several batches of one iterator": (SEVERAL_AT_ONCE, [FIRST]),
    "iterators in a list": (
        COMPREHENSION,
        ["iterators = [iter(rd.distribute_loader(loader)) for loader in (first, second)]"],
    ),
    "iterators in a dict": (DICT, [FIRST, SECOND]),
    "one of several": (
        BY_CHANCE,
        [
            "iterators = {name: iter(rd.distribute_loader(loader)) for name, loader in loaders.items()}",
            "iterators[name] = iter(rd.distribute_loader(loaders[name]))",
        ],
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_loader_that_a_batch_is_put_together_from_is_sharded(tmp_path: Path, form: str) -> None:
    text, sharded = FORMS[form]
    lines = converted(tmp_path, SCRIPT + text)
    assert [line for line in lines if "distribute_loader" in line] == sharded
    assert not any("same_batches" in line for line in lines)


VALIDATION = """\
validation = iter(second)


def validate():
    total = 0.0
    for _ in range(3):
        with torch.no_grad():
            total += model(next(validation)[0]).sum().item()
    return total


for epoch in range(2):
    for (x,) in first:
        learn(x)
    model.eval()
    print(validate())
    model.train()
"""


def test_the_loop_of_an_evaluation_is_none_of_the_training(tmp_path: Path) -> None:
    lines = converted(tmp_path, SCRIPT + VALIDATION)
    assert [line for line in lines if "distribute_loader" in line] == [FIRST]
