"""Checks of what a process has counted: a rank has a part of the samples, so that they are made in one process only."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import conversion, converted
from convert.training_runs import trains_as_one
from verify.projects.launch import Launcher

SCRIPT = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Trainer:
    def __init__(self, net, loaders):
        self.net = net
        self.loaders = loaders
        self.optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        self.criterion = nn.BCEWithLogitsLoss(reduction="none")

    def step(self, x, y, train):
        out = self.net(x).squeeze(1)
        loss = self.criterion(out, y)
        if not train:
            return out, loss
        self.optimizer.zero_grad()
        loss.mean().backward()
        self.optimizer.step()
        return out, loss

    def epoch(self, split):
        train = split == "train"
        self.net.train() if train else self.net.eval()
        loader = self.loaders[split]
        seen, total, kept = 0, 0.0, []
        for x, y in loader:
            out, loss = self.step(x, y, train)
            seen += x.shape[0]
            kept += list(loss)
            total += loss.max().item()
        CHECK
        return total / seen

    def fit(self):
        for epoch in range(2):
            trained = self.epoch("train")
            with torch.no_grad():
                print("shown", self.epoch("val"))
            print(trained)


torch.manual_seed(0)
x = torch.randn(70, 4)
y = (x[:, 0] > 0).float()
loaders = {
    "train": DataLoader(TensorDataset(x[:50], y[:50]), 8),
    "val": DataLoader(TensorDataset(x[50:], y[50:]), 8),
}
Trainer(nn.Linear(4, 1), loaders).fit()
"""
ASSERTED = "assert seen == len(loader.dataset), split"
RAISED = "if seen != len(loader.dataset):\n            raise RuntimeError(split)"
OF_LIST = "assert len(loader.dataset) == len(kept)"


@pytest.mark.parametrize(
    ("check", "expected"),
    [
        (ASSERTED, "assert rd.get_world_size() > 1 or (seen == len(loader.dataset)), split"),
        (RAISED, "if rd.get_world_size() == 1 and (seen != len(loader.dataset)):"),
    ],
)
def test_a_check_of_own_samples_is_made_in_one_process_only(tmp_path: Path, check: str, expected: str) -> None:
    result = conversion(tmp_path, SCRIPT.replace("CHECK", check))
    (text,) = [file.text for file in result.files]
    assert expected in text
    assert any("which is checked in one process only" in finding.message for finding in result.listed)


@pytest.mark.parametrize("check", ["assert seen > 0", "assert all(value > 0 for value in kept)"])
def test_other_checks_stay(tmp_path: Path, check: str) -> None:
    assert check in converted(tmp_path, SCRIPT.replace("CHECK", check))


@pytest.mark.parametrize("test", ["not train", "not train or len(y) == 0", "not (train and len(y) > 0)"])
def test_the_loader_of_the_training_alone_is_sharded(test: str, tmp_path: Path) -> None:
    lines = converted(tmp_path, SCRIPT.replace("CHECK", ASSERTED).replace("if not train:", f"if {test}:"))
    assert "loaders['train'] = rd.distribute_loader(loaders['train'])" in lines
    assert len([line for line in lines if "distribute_loader" in line]) == 1


@pytest.mark.parametrize("check", [RAISED, OF_LIST])  # the list is brought together
def test_an_evaluation_is_that_of_one_process(tmp_path: Path, launcher: Launcher, check: str) -> None:
    trains_as_one(tmp_path, SCRIPT.replace("CHECK", check), launcher, rel=1e-4)
