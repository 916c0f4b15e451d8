"""One loop for training and evaluation: only what it draws from while it trains is sharded."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import conversion

HEAD = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def loader(n, shuffle):
    x = torch.randn(n, 3)
    return DataLoader(TensorDataset(x, (x.sum(1) > 0).long()), batch_size=8, shuffle=shuffle)


train_batches, test_batches = loader(64, True), loader(22, False)
model = nn.Linear(3, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""
BODY = """\
        loss = nn.functional.cross_entropy(model(x), y)
        if TEST:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        total += loss.item()
    return total / len(batches)
"""
HANDED_ON = """\


def step(batch, opt=None):
    loss = nn.functional.cross_entropy(model(batch[0]), batch[1])
    if opt is not None:
        opt.zero_grad()
        loss.backward()
        opt.step()
    return loss.item()


def run(batches, opt=None):
    total = 0.0
    for batch in batches:
        total += step(batch, opt)
    return total / len(batches)


for epoch in range(2):
    print(run(train_batches, optimizer))
    print(run(test_batches))
"""
LOOP = "\n\ndef run(batches):\n    total = 0.0\n    for x, y in batches:\n" + BODY
MODE = LOOP.replace("TEST", "model.training")
FORMS = {
    "handed on to a step": HANDED_ON,
    "by model.eval()": MODE
    + """\


for epoch in range(2):
    model.train()
    print(run(train_batches))
    model.eval()
    print(run(test_batches))
""",
    "by model.train(False)": MODE
    + """\


for epoch in range(2):
    model.train(True)
    print(run(train_batches))
    model.train(False)
    print(run(test_batches))
""",
    "without gradients": LOOP.replace("TEST", "torch.is_grad_enabled()")
    + """\


for epoch in range(2):
    print(run(train_batches))
    with torch.no_grad():
        print(run(test_batches))
""",
    "in a function without gradients": LOOP.replace("TEST", "torch.is_grad_enabled()")
    + """\


@torch.no_grad()
def evaluate():
    print(run(test_batches))


for epoch in range(2):
    print(run(train_batches))
    evaluate()
""",
}


@pytest.mark.parametrize("form", FORMS)
def test_the_loader_of_the_evaluation_is_left_whole(tmp_path: Path, form: str) -> None:
    text = _converted(tmp_path, HEAD + FORMS[form])
    assert "train_batches = rd.distribute_loader(train_batches)" in text
    assert "distribute_loader(test_batches)" not in text


SET_IN_A_BRANCH = (
    MODE
    + """\


for batches, trains in ((train_batches, True), (test_batches, False)):
    if trains:
        model.train()
    else:
        model.eval()
    print(run(batches))
"""
)
SWITCHED_ON = (
    LOOP.replace("    for x, y", "    with torch.enable_grad():\n     for x, y").replace("TEST", "total >= 0")
    + """\


for epoch in range(2):
    with torch.no_grad():
        print(run(train_batches))
"""
)


@pytest.mark.parametrize("text", [SET_IN_A_BRANCH, SWITCHED_ON], ids=["mode set in a branch", "gradients switched on"])
def test_a_call_that_may_train_is_a_training(tmp_path: Path, text: str) -> None:
    assert "rd.distribute_loader(" in _converted(tmp_path, HEAD + text)


def test_ready_batches_of_an_evaluation_are_left_whole(tmp_path: Path) -> None:
    own = """\


class Batches:
    def __init__(self, items):
        self.items = items

    def __iter__(self):
        return iter(self.items)


def ready(n):
    return Batches([(torch.randn(8, 3), torch.ones(8).long()) for _ in range(n)])


def run(batches, opt):
    total = 0.0
    for x, y in batches:
        loss = nn.functional.cross_entropy(model(x), y)
        if opt is not None:
            opt.zero_grad()
            loss.backward()
            opt.step()
        total += loss.item()
    print(total)


to_train, to_test = ready(8), ready(3)
for epoch in range(2):
    run(to_train, optimizer)
    run(to_test, None)
"""
    text = _converted(
        tmp_path, HEAD.replace("train_batches, test_batches = loader(64, True), loader(22, False)\n", "") + own
    )
    assert "to_train = rd.distribute_loader(to_train)" in text
    assert "distribute_loader(to_test)" not in text


def _converted(tmp_path: Path, script: str) -> str:
    plan = conversion(tmp_path, script)
    assert not plan.refusals, [str(refusal) for refusal in plan.refusals]
    (file,) = (f for f in plan.files if f.path.name == "train.py")
    return file.text


ENDLESS = """\


def endless(source):
    batches = iter(source)
    while True:
        try:
            yield next(batches)
        except StopIteration:
            batches = iter(source)


def load():
    to_train, to_test = loader(64, True), loader(22, False)
    return {"train": endless(to_train), "test": endless(to_test), "n_test": len(to_test)}


def draw(batches):
    return next(batches)


def evaluate(batches, n):
    with torch.no_grad():
        for _ in range(n):
            x, y = draw(batches)
            print(nn.functional.cross_entropy(model(x), y).item())


data = load()
for step in range(20):
    x, y = draw(data["train"])
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    if step % 10 == 9:
        evaluate(data["test"], data["n_test"])
"""


@pytest.mark.parametrize("again", ["next(batches)", "batches.__next__()"])
def test_loaders_that_one_generator_and_one_function_share_are_told_apart(tmp_path: Path, again: str) -> None:
    text = _converted(tmp_path, HEAD + ENDLESS.replace("next(batches)", again))
    assert "to_train = rd.distribute_loader(to_train)" in text
    assert "distribute_loader(to_test)" not in text and "distribute_loader(source)" not in text


GENERATOR = """\


class Data:
    def get_batches(self, inputs, targets, size, shuffle):
        order = torch.randperm(len(inputs)) if shuffle else torch.arange(len(inputs))
        start = 0
        while start < len(inputs):
            rows = order[start : start + size]
            yield inputs[rows], targets[rows]
            start += size


def evaluate(data, X, Y):
    model.eval()
    total = 0.0
    for X, Y in data.get_batches(X, Y, 8, False):
        total += nn.functional.cross_entropy(model(X), Y).item()
    return total


def train(data, X, Y):
    model.train()
    for X, Y in data.get_batches(X, Y, 8, True):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(X), Y).backward()
        optimizer.step()


data = Data()
inputs, targets = torch.randn(86, 3), torch.ones(86).long()
for epoch in range(2):
    train(data, inputs[:64], targets[:64])
    print(evaluate(data, inputs[64:], targets[64:]))
"""


def test_an_evaluation_whose_batches_have_the_names_of_its_data_gets_all_rows(tmp_path: Path) -> None:
    head = HEAD.replace("train_batches, test_batches = loader(64, True), loader(22, False)\n", "")
    text = _converted(tmp_path, head + GENERATOR)
    assert "in rd.data.whole_batches(data.get_batches(X, Y, 8, False)):" in text
    assert "in data.get_batches(X, Y, 8, True):" in text and "rd.data.own_part(" in text
