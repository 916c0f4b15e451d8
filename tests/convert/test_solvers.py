"""Data that a solver makes before the training, and the same solver around the model in it: neural ODEs, simulators."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import conversion

SCRIPT = """\
import numpy as np
import torch
from torch import nn


class Solver:
    def __init__(self, func, y0):
        self.func, self.y = func, y0

    def run(self, times):
        found = [self.y]
        for i in range(len(times) - 1):
            self.y = self.y + (times[i + 1] - times[i]) * self.func(self.y)
            found.append(self.y)
        return torch.stack(found)


def solve(func, y0, times):
    solver = Solver(func, y0)
    return solver.run(times)


def field(y):
    return torch.stack([y[:, 1], -y[:, 0]], dim=1)


times = torch.linspace(0.0, 5.0, 50)
with torch.no_grad():
    truth = solve(field, torch.ones(1, 2), times)[:, 0]


def get_batch():
    s = torch.from_numpy(np.random.choice(40, 8, replace=False))
    return truth[s], torch.stack([truth[s + i] for i in range(5)])


model = nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
KEPT
for step in range(20):
    x, y = get_batch()
    loss = (SOLVED - y).abs().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
PER_BATCH = {
    "in a function": "solve(model, x, times[:5])",
    "at once": "Solver(model, x).run(times[:5])",
}


@pytest.mark.parametrize("form", PER_BATCH)
def test_a_solver_that_is_made_for_each_batch_keeps_nothing(tmp_path: Path, form: str) -> None:
    result = conversion(tmp_path, SCRIPT.replace("KEPT\n", "").replace("SOLVED", PER_BATCH[form]))
    assert not result.refusals
    (text,) = [file.text for file in result.files if file.path.name == "train.py"]
    assert "rd.data.own_draw(np.random.choice(40, rd.data.batch_of_ranks(8), replace=False))" in text
    assert "one_process_only" not in text


def test_a_solver_that_keeps_its_state_between_batches_is_refused(tmp_path: Path) -> None:
    script = SCRIPT.replace("KEPT", "solver = Solver(model, torch.zeros(8, 2))")
    script = script.replace("self.y = self.y +", "self.y = self.y + x.mean() +").replace(
        "def run(self, times", "def run(self, x, times"
    )
    script = script.replace("solver.run(times)", "solver.run(y0, times)")
    refused = conversion(tmp_path, script.replace("SOLVED", "solver.run(x, times[:5])")).refusals
    assert [finding.kind for finding in refused] == ["carried-state"]
