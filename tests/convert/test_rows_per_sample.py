"""What a script makes once with a row for each sample of a batch: the rows are this process's, or it is listed."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import conversion
from convert.training_runs import trains_as_one
from verify.projects.launch import Launcher

SCRIPT = """\
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
size = 4
data = TensorDataset(torch.randn(16, 3), torch.randint(0, 3, (16,)))
loader = DataLoader(data, batch_size=size)
held_out = DataLoader(TensorDataset(torch.randn(8, 3)), batch_size=size)
model = nn.Linear(3, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
MADE
for epoch in range(2):
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x + rows), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print("shown", loss.item())
"""
OWN = "rd.data.own_batch_size(size)"
ROWS = [
    "rows = torch.ones(size, 3)",
    "rows = torch.ones(size=(size, 3))",
    "rows = torch.arange(3.0)[None].expand(size, -1)",
    "rows = torch.arange(3.0).repeat(size, 1)",
    "rows = torch.from_numpy(np.tile(np.arange(3.0, dtype='float32'), (size, 1)))",
    "rows = torch.tensor(np.vstack([np.linspace(0, 1, 3) for _ in range(size)])).float()",
    "rows = torch.tensor([[0.5, 1, 2]] * size)",
]
MODULES = [
    "rows = torch.ones(size, 3)\n        self.register_buffer('rows', rows)",
    "self.rows = nn.Parameter(torch.ones(size, 3), requires_grad=False)",
]
MODULE = """\
class Shift(nn.Module):
    def __init__(self, size):
        super().__init__()
        ROWS

    def forward(self, x):
        return x + self.rows


shift = Shift(size)
"""
EVALUATION = """\
    model.eval()
    with torch.no_grad():
        for (x,) in held_out:
            print(model(x + rows).sum())
    model.train()
"""


@pytest.mark.parametrize("made", ROWS)
def test_the_rows_are_those_of_the_process(made: str, tmp_path: Path) -> None:
    result = conversion(tmp_path, SCRIPT.replace("MADE", made))
    assert not result.refusals
    expected = made.replace("size", OWN) if "size=(" not in made else f"rows = torch.ones(size=({OWN}, 3))"
    assert expected in result.files[0].text.splitlines()


@pytest.mark.parametrize("made", [ROWS[-1], "table = {size: 1}\nrows = torch.zeros(1, 3)"])
def test_two_processes_train_as_one(made: str, tmp_path: Path, launcher: Launcher) -> None:
    trains_as_one(tmp_path, SCRIPT.replace("MADE", made), launcher, rel=1e-5)


@pytest.mark.parametrize("made", MODULES)
def test_rows_that_a_module_keeps_are_cut(made: str, tmp_path: Path, launcher: Launcher) -> None:
    script = SCRIPT.replace("MADE", MODULE.replace("ROWS", made)).replace("x + rows", "shift(x)")
    result = conversion(tmp_path, script)
    assert not result.refusals and "self.rows[:rd.data.own_batch_size(len(self.rows), x)]" in result.files[0].text
    trains_as_one(tmp_path, script, launcher, rel=1e-5)


def test_rows_that_an_evaluation_uses_too_are_listed(tmp_path: Path) -> None:
    _listed(SCRIPT.replace("MADE", ROWS[0]) + EVALUATION, tmp_path)


def _listed(script: str, folder: Path) -> None:
    result = conversion(folder, script)
    assert not result.refusals and "own_batch_size" not in result.files[0].text
    (finding,) = (finding for finding in result.findings if finding.code == "RF112")
    assert "RETROFIT_BATCH=global" in finding.message and not finding.edits and "x.size(0)" in finding.help
