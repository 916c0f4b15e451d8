"""Functions of a script that draw a batch sample by sample: for all ranks, each of which takes its samples."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import conversion, converted

START = """\
import random

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
X, Y = torch.rand(100, 4), torch.rand(100)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def chosen(data, n):
    found = []
    for _ in range(n):
        found.append(random.randrange(len(data)))
    return X[found], Y[found]


def filled(length, batch_size):
    x, y = torch.zeros(batch_size, 4), torch.zeros(batch_size)
    for row in range(batch_size):
        start = random.randint(0, 90)
        x[row], y[row] = X[start, :length], Y[start]
    return x, y


def one():
    row = random.randrange(len(X))
    return X[row], Y[row]


def stacked(n):
    pairs = [one() for _ in range(n)]
    return torch.stack([x for x, _ in pairs]), torch.stack([y for _, y in pairs])


def augmented(at, batch_size):
    rows = []
    for row in range(batch_size):
        rows.append(X[(at * 16 + row) % 100] + random.random())
    return torch.stack(rows), Y[:batch_size]


def augmented_list(at, batch_size):
    return torch.stack([X[(at * 16 + row) % 100] + random.random() for row in range(batch_size)]), Y[:batch_size]


class Data:
    def __init__(self, x, y):
        self.x, self.y, self.at = x, y, 0

    def next_batch(self, size):
        if self.at + size > len(self.x):
            order = np.random.permutation(len(self.x))
            self.x, self.y, self.at = self.x[order], self.y[order], 0
        self.at += size
        return self.x[self.at - size : self.at], self.y[self.at - size : self.at]


class Memory:
    def __init__(self):
        self.rows = []

    def push(self, row):
        self.rows.append(row)

    def draw(self, batch_size):
        rows = [self.rows[random.randrange(len(self.rows))] for _ in range(batch_size)]
        return torch.stack(rows), torch.zeros(batch_size)


data, memory = Data(X, Y), Memory()


def fit(x, y):
    optimizer.zero_grad()
    F.mse_loss(model(x).squeeze(1), y).backward()
    optimizer.step()


for step in range(10):
"""


@pytest.mark.parametrize(
    ("line", "size"),
    [("x, y = chosen(X, 16)", "16"), ("x, y = filled(4, batch_size=16)", "16"), ("x, y = stacked(16)", "16")],
)
def test_a_batch_is_drawn_for_all_ranks(tmp_path: Path, line: str, size: str) -> None:
    lines = converted(tmp_path, f"{START}    {line}\n    fit(x, y)\n")
    before, call = line.split(" = ", 1)
    drawn = call.replace(size, f"rd.data.batch_of_ranks({size})")
    assert f"{before} = rd.data.own_draw({drawn}, {size})" in lines


def test_a_batch_that_is_given_on_at_once(tmp_path: Path) -> None:
    lines = converted(tmp_path, f"{START}    fit(*chosen(X, 16))\n")
    assert "fit(*rd.data.own_draw(chosen(X, rd.data.batch_of_ranks(16)), 16))" in lines


@pytest.mark.parametrize("line", ["x, y = chosen(X, SIZE)", "x, y = filled(4, SIZE)"])
def test_a_function_is_told_the_number_of_all_ranks(tmp_path: Path, line: str) -> None:
    lines = converted(tmp_path, f"SIZE = 16\n{START}    {line}\n    fit(x, y)\n")
    assert not any("own_batch_size" in line for line in lines)
    assert sum("rd.data.batch_of_ranks(SIZE)" in line for line in lines) == 1


SHOWN = """
TEXT = "abcdefgh" * 10


def encoded(text):
    found = torch.zeros(4)
    for place in range(4):
        found[place] = ord(text[place])
    return found


def drawn(batch_size):
    x, y = torch.zeros(batch_size, 4), torch.zeros(batch_size)
    for row in range(batch_size):
        start = random.randint(0, 70)
        x[row] = encoded(TEXT[start : start + 4])
        y[row] = Y[start]
    return x, y


def shown():
    text, given = "abcd", encoded("abcd")
    for _ in range(3):
        letter = TEXT[int(model(given))]
        text += letter
        given = encoded(letter * 4)
    return text


for step in range(10):
    x, y = drawn(16)
    fit(x[:, :4], y)
    print(shown())
"""


def test_a_function_that_a_sample_of_the_model_is_given_to_as_well_draws_no_rollout(tmp_path: Path) -> None:
    lines = converted(tmp_path, START.replace("\nfor step in range(10):\n", SHOWN))
    assert "x, y = rd.data.own_draw(drawn(rd.data.batch_of_ranks(16)), 16)" in lines


def reasons(folder: Path, body: str) -> list[str]:
    return [finding.refusal for finding in conversion(folder, START + body).refusals]


@pytest.mark.parametrize(
    "body",
    [
        # what the loop itself fills
        "    memory.push(X[step])\n    x, y = memory.draw(16)\n    fit(x, y)\n",
        # other data of each step next to it
        "    x, y = chosen(X, 16)\n    fit(x, y + Y[step * 16])\n",
        "    x, y = chosen(X, 16)\n    u, v = chosen(X, 16)\n    fit(x + u, y)\n",
        # samples that the step chooses
        "    x, y = augmented(step, 16)\n    fit(x, y)\n",
        "    x, y = augmented_list(step, 16)\n    fit(x, y)\n",
        # an environment
        "    x, y = chosen(X, 16)\n    fit(x, y)\n    state, reward, done, info = data.step(0)\n",
        # how many samples is not told
        "    x, y = chosen(X, len(X) // 4)\n    fit(x, y)\n",
    ],
)
def test_what_is_not_known_to_be_the_whole_batch_is_refused(tmp_path: Path, body: str) -> None:
    told = ("makes a batch is not known", "changes while it trains")
    assert any(text in reason for reason in reasons(tmp_path, body) for text in told), reasons(tmp_path, body)


SAMPLER = """\
class Sampler:
    def __init__(self, total, batch):
        self.total, self.batch, self.at, self.order = total, batch, total, None

    def NAME(self):
        self.at += self.batch
        if self.at + self.batch > self.total:
            self.order, self.at = torch.LongTensor(np.random.permutation(self.total)), 0
        return self.order[self.at : self.at + self.batch]


def whole(x):
    return model(x)


def by_loop(x, part=8):
    found = []
    for i in range(x.shape[0] // part + int(x.shape[0] % part > 0)):
        found.append(model(x[i * part : (i + 1) * part]))
    return torch.cat(found)


def by_split(x, part=8):
    return torch.cat([model(piece) for piece in torch.split(x, part)])


sizes = [60, 40]
size = 16
sampler = Sampler(len(X), size)
for step in range(10):
    ids = sampler.NAME()
    optimizer.zero_grad()
    F.mse_loss(RUN(X[ids]).squeeze(1), Y[ids]).backward()
    optimizer.step()
"""
FEWER = "    if step == 4:\n        X = X[: sizes.pop(0)]\n        sampler = Sampler(len(X), size)\n"


@pytest.mark.parametrize("run", ["whole", "by_loop", "by_split"])
@pytest.mark.parametrize("later", ["", FEWER])
def test_a_sampler_of_a_model_that_runs_on_parts_of_a_batch(tmp_path: Path, run: str, later: str) -> None:
    text = START.rpartition("for step")[0] + SAMPLER.replace("NAME", "next_ids").replace("RUN", run) + later
    lines = converted(tmp_path, text)
    assert "ids = rd.data.own_draw(sampler.next_ids(), size)" in lines
    assert lines.count("sampler = Sampler(len(X), rd.data.batch_of_ranks(size))") == 1 + bool(later)


def test_a_sampler_that_is_called_itself(tmp_path: Path) -> None:
    text = SAMPLER.replace("def NAME", "def __call__").replace(".NAME()", "()").replace("RUN", "whole")
    lines = converted(tmp_path, START.rpartition("for step")[0] + text)
    assert "ids = rd.data.own_draw(sampler(), size)" in lines
    assert "sampler = Sampler(len(X), rd.data.batch_of_ranks(size))" in lines
