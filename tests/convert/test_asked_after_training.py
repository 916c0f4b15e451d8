"""Is there what the training has saved? All processes have rank 0's answer: another one may ask too early."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import converted

SCRIPT = """\
import os
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

loader = DataLoader(TensorDataset(torch.randn(40, 6)), batch_size=8)
model = nn.Linear(6, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
best = Path("best.pt")
if os.path.exists("best.pt"):
    model.load_state_dict(torch.load("best.pt"))


def fit():
    for epoch in range(3):
        for (x,) in loader:
            loss = model(x).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if epoch == 2:
            torch.save(model.state_dict(), {path})
{after}

fit()
print(model.weight.mean().item())
"""
LOAD = "    model.load_state_dict(torch.load({path}))"


@pytest.mark.parametrize(
    ("path", "asked", "answer"),
    [
        ("'best.pt'", "os.path.exists('best.pt')", "rd.output.answer_of_main(os.path.exists, 'best.pt')"),
        ("best", "best.exists()", "rd.output.answer_of_main(best.exists)"),
        ("best", "best.is_file()", "rd.output.answer_of_main(best.is_file)"),
    ],
)
def test_the_answer_is_that_of_rank_0(tmp_path: Path, path: str, asked: str, answer: str) -> None:
    after = f"    if {asked}:\n    {LOAD.format(path=path)}\n"
    lines = converted(tmp_path, SCRIPT.format(path=path, after=after))
    assert f"if {answer}:" in lines
    assert 'if os.path.exists("best.pt"):' in lines  # before the training nothing is made


def test_in_the_function_that_calls_the_training(tmp_path: Path) -> None:
    script = SCRIPT.format(path="'best.pt'", after="")
    load = f"if os.path.exists('best.pt'):\n{LOAD.format(path=repr('best.pt'))}\n"
    lines = converted(tmp_path, script.replace("\nfit()\n", f"\nfit()\n{load}"))
    assert "if rd.output.answer_of_main(os.path.exists, 'best.pt'):" in lines
