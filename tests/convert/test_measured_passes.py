"""Backward passes that are only measured are no training: nothing uses their gradients."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import conversion

from retrofit.training import read_project

SCRIPT = """\
import sys
import time

import torch
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
loader = DataLoader(TensorDataset(torch.randn(64, 4), torch.randn(64, 1)), batch_size=8)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def run(model, x):
    start = time.time()
    for _ in range(10):
        y = model(x).sum()
        y.backward()
        MORE
    return time.time() - start


if len(sys.argv) > 1:
    print(run(model, torch.zeros(8, 4)))
for epoch in range(2):
    for x, y in loader:
        loss = (model(x) - y).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


@pytest.mark.parametrize("more", ["torch.cuda.empty_cache()", "model.zero_grad()"])
def test_a_pass_that_is_only_measured_does_not_train(more: str, tmp_path: Path) -> None:
    result = conversion(tmp_path, SCRIPT.replace("MORE", more))
    assert not result.refusals
    assert "lr=rd.scaled_lr(0.1)" in result.files[0].text


@pytest.mark.parametrize(
    "more",
    [
        "optimizer.step()",
        "total = model.weight.grad.abs().sum()",
        "model.weight.data += 1",
        "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)",
    ],
)
def test_a_pass_of_which_something_uses_the_gradients_is_one(more: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT.replace("MORE", more))
    assert len(read_project(tmp_path / "train.py").paths) == 2


def test_a_pass_of_which_there_is_no_other_is_one(tmp_path: Path) -> None:
    text = SCRIPT.replace("MORE", "pass")
    (tmp_path / "train.py").write_text(text[: text.index("for epoch")])
    assert len(read_project(tmp_path / "train.py").paths) == 1
