"""Reads of a loss that are brought together over the processes."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import converted

SCRIPT = """\
import argparse

import torch
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--weight", type=float, default=0.1)
args = parser.parse_args()
torch.manual_seed(0)
loader = DataLoader(TensorDataset(torch.randn(16, 3)), 4, shuffle=True)
test_loader = DataLoader(TensorDataset(torch.randn(16, 3)), 4, shuffle=True)
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
count = average = 0.0
for (x,) in loader:
    optimizer.zero_grad()
    fit = model(x).pow(2).mean()
    size = model(x).abs().mean()
    pull = args.weight * size
    loss = fit + pull
    loss.backward()
    optimizer.step()
    count += 1
    LINE
"""


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("average = 0.9 * average + 0.1 * float(loss)", "average = 0.9 * average + 0.1 * float(rd.reduce_loss(loss))"),
        ("print(loss.data.item())", "print(rd.reduce_loss(loss).data.item())"),
        ("print(loss.detach().cpu().item())", "print(rd.reduce_loss(loss).detach().cpu().item())"),
        ("print(fit.item(), pull.item())", "print(rd.reduce_loss(fit).item(), rd.reduce_loss(pull).item())"),
        ("print(size.item())", "print(rd.reduce_loss(size).item())"),
        ("print(float(count))", "print(float(count))"),
    ],
)
def test_loss_reads(line: str, expected: str, tmp_path: Path) -> None:
    assert expected in converted(tmp_path, SCRIPT.replace("LINE", line))


def test_a_loss_read_after_the_loop_is_that_of_the_last_batch(tmp_path: Path) -> None:
    script = SCRIPT.replace("LINE", "print(loss.item())").replace("for (x,)", "for epoch in range(2):\n  for (x,)")
    lines = converted(tmp_path, f"{script}  print(loss.item())\n")
    inside, after = (number for number, line in enumerate(lines) if line.startswith("print("))
    assert lines[inside] == "print(rd.reduce_loss(loss).item())"
    assert lines[after] == "print(rd.loss.reduce_last_loss(loss).item())"


def test_reading_one_batch_of_the_test_set_is_not_training(tmp_path: Path) -> None:
    look = """\
if count % 2 == 0:
        (x,) = next(iter(test_loader))
        model = model.eval()
        loss = model(x).pow(2).mean()
        print(loss.item())
"""
    lines = converted(tmp_path, SCRIPT.replace("    LINE\n", f"    {look}"))
    assert "loader = rd.distribute_loader(loader)" in lines
    assert "test_loader = rd.distribute_loader(test_loader)" not in lines
    assert "print(loss.item())" in lines


def test_a_branch_that_draws_what_is_trained_on_is_training(tmp_path: Path) -> None:
    refill = """\
if count % 2 == 0:
        (x,) = next(iter(test_loader))
    model(x).sum().backward()
"""
    lines = converted(tmp_path, SCRIPT.replace("    LINE\n", f"    {refill}"))
    assert "test_loader = rd.distribute_loader(test_loader)" in lines
