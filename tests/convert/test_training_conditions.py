"""A loader that is drawn from only when nothing is trained stays whole; the one of the training is sharded."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import converted

SCRIPT = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
first = DataLoader(TensorDataset(torch.rand(64, 4)), batch_size=8, shuffle=True)
second = DataLoader(TensorDataset(torch.rand(32, 4)), batch_size=8)


def run({parameter}):
    total = 0
    {choice}
    for (x,) in {loader}:
        loss = model(x).pow(2).mean()
        total += loss.item()
        if {test}:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        {last}
    return total


for epoch in range(3):
    print(run({train}))
    print(run({valid}))
"""
FORMS = {
    "a conditional expression": ("train", "loader = first if train else second", "loader", "train", "True", "False"),
    "a negated flag": (
        "valid=False",
        "loader = second if valid else first",
        "loader",
        "not valid",
        "",
        "valid=True",
    ),
    "branches": (
        "train",
        "if train:\n        loader = first\n    else:\n        loader = second",
        "loader",
        "train",
        "True",
        "False",
    ),
    "a loader that is replaced": (
        "train",
        "loader = first\n    if not train:\n        loader = second",
        "loader",
        "train",
        "True",
        "False",
    ),
    "a loader that is replaced for the training": (
        "train",
        "loader = second\n    if train:\n        loader = first",
        "loader",
        "train",
        "True",
        "False",
    ),
    "the head of the loop": ("train", "pass", "(first if train else second)", "train", "True", "False"),
    "the name of a phase": (
        "phase",
        "train = phase == 'train'\n    loader = first if phase == 'train' else second",
        "loader",
        "train",
        "'train'",
        "'valid'",
    ),
    "the name of the other phase": (
        "phase",
        "loader = second if phase == 'valid' else first",
        "loader",
        "phase == 'train'",
        "'train'",
        "'valid'",
    ),
    "an optimizer": (
        "opt=None",
        "loader = second if opt is None else first",
        "loader",
        "opt is not None",
        "optimizer",
        "",
    ),
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_the_loader_of_a_branch_without_training_stays_whole(form: tuple[str, ...], tmp_path: Path) -> None:
    names = ("parameter", "choice", "loader", "test", "train", "valid")
    lines = converted(tmp_path, SCRIPT.format(**dict(zip(names, form)), last="pass"))
    assert "first = rd.distribute_loader(first)" in lines
    assert "second = rd.distribute_loader(second)" not in lines


def test_a_step_that_the_evaluation_leaves_before_the_gradients(tmp_path: Path) -> None:
    leaves = "        if valid:\n            continue\n        with torch.enable_grad():\n"
    script = SCRIPT.replace("        if {test}:\n", leaves)
    choice = "loader = second if valid else first"
    lines = converted(
        tmp_path, script.format(parameter="valid", choice=choice, loader="loader", train=0, valid=1, last="pass")
    )
    assert "first = rd.distribute_loader(first)" in lines
    assert "second = rd.distribute_loader(second)" not in lines


def test_both_loaders_are_sharded_where_the_flag_changes_in_the_loop(tmp_path: Path) -> None:
    choice = "loader = first if train else second"
    form = dict(parameter="train", choice=choice, loader="loader", test="train", train="True", valid="False")
    lines = converted(tmp_path, SCRIPT.format(**form, last="train = not train"))
    assert "first = rd.distribute_loader(first)" in lines
    assert "second = rd.distribute_loader(second)" in lines
