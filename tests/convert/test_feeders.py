"""Objects that feed one batch after the other and keep their place: `feeder.next_batch(size)`."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import conversion, converted

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
