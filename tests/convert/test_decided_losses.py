"""Tests of a batch's numbers by which the loss is one thing or another: all ranks decide as one process does."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import converted
from convert.training_runs import trains_as_one
from verify.projects.launch import Launcher

SCRIPT = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
loader = DataLoader(TensorDataset(torch.randn(44, 6), torch.randn(44, 1)), batch_size=6)
model, criterion = nn.Linear(6, 1), nn.MSELoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for x, y in loader:
    near, far = criterion(model(x), y), criterion(model(-x), y)
    loss = near
    if TEST:
        loss = loss + 2 * far
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("shown", loss.item())
"""
TESTS = {
    "(1.3 - far.data).item() > 0": "(1.3 - rd.reduce_loss(far).data).item() > 0",
    "far.detach() < 1.3": "rd.reduce_loss(far).detach() < 1.3",
    "(1.3 - far) > 0": "(rd.reduce_loss(1.3 - far)) > 0",
    "float(far) < 1.3": "float(rd.reduce_loss(far)) < 1.3",
    "x.mean() > 0": "rd.reduce_loss(x.mean()) > 0",
    "len(x) > 4": "rd.reduce_total(len(x)) > 4",
}


@pytest.mark.parametrize("test", TESTS)
def test_the_loss_is_chosen_by_what_all_ranks_have(test: str, tmp_path: Path) -> None:
    assert f"if {TESTS[test]}:" in converted(tmp_path, SCRIPT.replace("TEST", test))


def test_a_loss_added_to_is_decided_too(tmp_path: Path) -> None:
    script = SCRIPT.replace("TEST", "far < 1.3").replace("loss = loss + 2 * far", "loss += 2 * far")
    assert "if rd.reduce_loss(far) < 1.3:" in converted(tmp_path, script)


def test_ranks_that_would_part_train_as_one_process(tmp_path: Path, launcher: Launcher) -> None:
    trains_as_one(tmp_path, SCRIPT.replace("TEST", "far.detach() < 1.3"), launcher, world_sizes=(2, 3), rel=1e-5)
