"""A function that cuts its data into batches, to train on them or to evaluate: both are split across ranks."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import converted
from convert.training_runs import trains_as_one
from verify.projects.launch import Launcher

START = """\
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
np.random.seed(0)
torch.set_default_dtype(torch.float64)
X = torch.randn(91, 6)
Y = (X.sum(1) > 0).long()
model = nn.Linear(6, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""
RUN = """\


def run(x, y, size, optimizer=None):
    total, hits, kept = 0.0, 0, []
    model.train(optimizer is not None)
    order = np.random.permutation(len(x)) if optimizer is not None else np.arange(len(x))
    for OVER:
        outputs = model(x[k])
        loss = F.cross_entropy(outputs, y[k])
        if optimizer is not None:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        total += loss.item() * len(k)
        hits += (outputs.argmax(1) == y[k]).sum().item()
        kept.append(outputs.argmax(1).detach().numpy())
    return total / len(x), hits / len(x), np.concatenate(kept)


for epoch in range(3):
    print("shown", *run(X[:60], Y[:60], 8, optimizer)[:2])
    with torch.no_grad():
        loss, accuracy, predicted = run(X[60:], Y[60:], 8)
    print("shown", loss, accuracy, *predicted)
"""
GENERATOR = """\


def batches(x, y, size, shuffle):
    order = torch.randperm(len(x)) if shuffle else torch.arange(len(x))
    for i in range(0, len(x), size):
        k = order[i : i + size]
        yield x[k], y[k]


def run(data, size, optimizer=None):
    total, n = 0.0, 0
    with torch.set_grad_enabled(optimizer is not None):
        for x, y in batches(*data, size, optimizer is not None):
            loss = F.cross_entropy(model(x), y, reduction="sum")
            if optimizer is not None:
                optimizer.zero_grad()
                (loss / len(x)).backward()
                optimizer.step()
            total += loss.item()
            n += len(x)
    return total / n


for epoch in range(3):
    print("shown", run((X[:60], Y[:60]), 8, optimizer), run((X[60:], Y[60:]), 16))
"""
SCRIPTS = {
    "slices": RUN.replace("OVER", "k in (order[i : i + size] for i in range(0, len(x), size))"),
    "numbered slices": RUN.replace(
        "for OVER:", "for b in range(int(np.ceil(len(x) / size))):\n        k = order[b * size : (b + 1) * size]"
    ),
    "parts": RUN.replace("OVER", "k in torch.as_tensor(order).split(size)"),
    "a list of batches": RUN.replace("OVER", "k in np.array_split(order, 7)"),
    "a generator": GENERATOR,
}


@pytest.mark.parametrize("form", SCRIPTS)
def test_both_are_what_one_process_does(tmp_path: Path, launcher: Launcher, form: str) -> None:
    trains_as_one(tmp_path, START + SCRIPTS[form], launcher)


def test_what_comes_after_spread_values_is_the_size(tmp_path: Path) -> None:
    lines = converted(tmp_path, START + GENERATOR)
    assert "for i in range(0, len(x), rd.data.batch_of_ranks(size)):" in lines
    assert "for x, y in batches(*data, size, optimizer is not None):" in lines


LAST_IS_EMPTY = """\


def run(x, y, size):
    total, count = 0.0, len(x)
    for b in range(count // size + 1):
        start, end = b * size, (b + 1) * size
        if end > count:
            end = count
        rows = order[start:end]
        if TEST:
            continue
        loss = F.cross_entropy(model(x[rows]), y[rows])
        total += loss.item()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return total


order = list(range(60))
for epoch in range(2):
    np.random.shuffle(order)
    print("shown", run(X[:60], Y[:60], 12), *model.weight[0].tolist())
"""


@pytest.mark.parametrize("test", ["not rows", "len(rows) == 0", "rows == []", "not len(rows) > 0"])
def test_a_batch_without_samples_is_left_out_by_all_ranks(tmp_path: Path, launcher: Launcher, test: str) -> None:
    text = START + LAST_IS_EMPTY.replace("TEST", test)
    if test == "not rows":
        trains_as_one(tmp_path, text, launcher)
    else:
        assert "total += rd.reduce_loss(loss).item()" in converted(tmp_path, text)
