"""Objects that feed one batch after the other and keep their place: `feeder.next_batch(size)`."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import conversion, converted
from convert.training_runs import trains_as_one
from verify.projects.launch import Launcher

SCRIPT = """\
import numpy as np
import torch
from torch import nn


class Feeder:
    def __init__(self, x, y):
        self.x, self.y = x, y
        self.order, self.place, self.rng = np.arange(len(x)), 0, np.random.RandomState(0)

    def next_batch(self, {parameter}):
        {body}


feeder = Feeder(np.random.randn(66, 4).astype("float32"), np.random.randn(66, 1).astype("float32"))
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
size = 8
for step in {steps}:
    x, y = feeder.next_batch(size)
    loss = (model(torch.from_numpy(x)) - torch.from_numpy(y)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
BODY = """\
start = self.place
        if start + {0} > len(self.x):
            self.rng.shuffle(self.order)
            start = self.place = 0
        self.place += {0}
        rows = self.order[start:self.place]
        return self.x[rows], self.y[rows]"""


@pytest.mark.parametrize("parameter", ["batch_size", "n", "count"])
def test_what_a_feeder_gives_is_split(tmp_path: Path, parameter: str) -> None:
    lines = converted(tmp_path, SCRIPT.format(parameter=parameter, body=BODY.format(parameter), steps="range(36)"))
    assert "x, y = rd.data.own_draw(feeder.next_batch(rd.data.batch_of_ranks(size)), size)" in lines


@pytest.mark.parametrize("steps", ["range(66 // size)", "range(int(66 / size))"])
def test_steps_that_the_size_of_a_batch_counts_are_refused(tmp_path: Path, steps: str) -> None:
    """With a batch for each rank they would go through the data several times."""
    script = SCRIPT.format(parameter="batch_size", body=BODY.format("batch_size"), steps=steps)
    assert conversion(tmp_path, script).refusals


STREAM = """\
import torch
from torch import nn

size, length = 4, 8


class Stream:
    def __init__(self, tokens, B, T):
        self.tokens, self.B, self.T, self.place = tokens, B, T, 0

    def next_batch(self):
        B, T = self.B, self.T
        chunk = self.tokens[self.place : self.place + B * T + 1]
        x, y = chunk[:-1].view(B, T), chunk[1:].view(B, T)
        self.place += B * T
        if self.place + B * T + 1 > len(self.tokens):
            self.place = 0
        return x, y


def evaluate(stream):
    stream.place, losses = 0, []
    with torch.no_grad():
        for _ in range(3):
            x, y = stream.next_batch()
            losses.append(loss_of(model(x), y).item())
    return sum(losses) / len(losses)


def loss_of(logits, y):
    return nn.functional.cross_entropy(logits.view(-1, logits.size(-1)), y.reshape(-1))


torch.manual_seed(0)
tokens = torch.randint(9, (700,)).cumsum(0) % 9
stream, other = Stream(tokens[:500], B=size, T=length), Stream(tokens[500:], B=size, T=length)
model = nn.Sequential(nn.Embedding(9, 6), nn.Linear(6, 9)).double()
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
history = []
STEPS
    x, y = stream.next_batch()
    loss = loss_of(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    history.append(loss.item())
print("shown", sum(history[-5:]), evaluate(other))
"""


def test_an_evaluation_reads_a_stream_of_its_own(tmp_path: Path, launcher: Launcher) -> None:
    script = STREAM.replace("STEPS", "for step in range(9):")
    lines = converted(tmp_path, script)
    assert "x, y = rd.data.own_draw(stream.next_batch(), size)" in lines
    assert "x, y = chunk[:-1].view(B, T), chunk[1:].view(B, T)" in lines
    made = "Stream(tokens[:500], B=rd.data.batch_of_ranks(size), T=length), Stream(tokens[500:], B=size, T=length)"
    assert f"stream, other = {made}" in lines
    (tmp_path / "run").mkdir()
    trains_as_one(tmp_path / "run", script, launcher)


@pytest.mark.parametrize("steps", ["while len(history) * size < 40:", "for step in range(9):\n    evaluate(stream)"])
def test_a_stream_that_is_read_elsewhere_or_by_a_budget_is_refused(tmp_path: Path, steps: str) -> None:
    assert conversion(tmp_path, STREAM.replace("STEPS", steps)).refusals
