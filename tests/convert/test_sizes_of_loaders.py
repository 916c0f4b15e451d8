"""The batch size that a script asks its loader for is that of the script, on any number of ranks."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import conversion
from convert.training_runs import trains_as_one
from verify.projects.launch import Launcher

SCRIPT = """\
import json

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
loader = DataLoader(TensorDataset(torch.randn(22, 4), torch.randn(22, 1)), batch_size=4)


class Trainer:
    def __init__(self, loader):
        self.loader = loader
        self.model = nn.Linear(4, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def done(self, step):
        done = step * self.loader.batch_size
        return done

    def run(self):
        seen, short = 0, 0
        for step, (x, y) in enumerate(self.loader):
            weights = torch.ones(self.loader.batch_size, 1)[: len(x)]
            loss = (weights * (self.model(x) - y).pow(2)).mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            seen += self.loader.batch_size
            if x.size(0) < self.loader.batch_size:
                short += 1
            print("shown", self.done(step), seen, loss.item())
        return seen, short


trainer = Trainer(loader)
for epoch in range(2):
    seen, short = trainer.run()
    print("shown", seen, short, len(loader.dataset) // loader.batch_size)
with open("settings.json", "w") as file:
    json.dump({"batch_size": loader.batch_size}, file)
"""
EDITS = (
    "done = step * rd.loss.global_batch(self.loader.batch_size)",
    "weights = torch.ones(rd.data.own_batch_size(self.loader.batch_size), 1)[: len(x)]",
    "global_batch_size = rd.loss.global_batch(self.loader.batch_size)",
    "seen += global_batch_size",
    'json.dump({"batch_size": loader.batch_size}, file)',
)


@pytest.mark.parametrize("edit", EDITS)
def test_a_size_of_a_loader_is_a_batch_size(edit: str, tmp_path: Path) -> None:
    result = conversion(tmp_path, SCRIPT)
    assert not result.refusals
    assert edit in [line.strip() for line in result.files[0].text.splitlines()]


def test_two_processes_show_and_save_what_one_does(tmp_path: Path, launcher: Launcher) -> None:
    trains_as_one(tmp_path, SCRIPT, launcher, rel=1e-6)
    settings = [(tmp_path / run / "settings.json").read_text() for run in ("original", "converted")]
    assert settings[0] == settings[1]
