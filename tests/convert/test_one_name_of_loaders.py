"""One name for the loader of the training and then for that of the evaluation: each loop draws from its own."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
from convert.conversion import conversion

SCRIPT = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from tqdm import tqdm

x = torch.randn(52, 6)
train_loader = DataLoader(TensorDataset(x[:37]), batch_size=8)
valid_loader = DataLoader(TensorDataset(x[37:]), batch_size=4)
model = nn.Linear(6, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)


def fit(train_loader, valid_loader=None):
    for epoch in range(3):
        model.train()
{training}
        model.eval()
        total, sizes = 0.0, []
        with torch.no_grad():
{evaluation}
        print(total, sizes[-1])
        if total < 1:
            break


fit(train_loader, valid_loader=valid_loader)
"""
STEP = """\
loss = model(batch[0]).pow(2).mean()
optimizer.zero_grad()
loss.backward()
optimizer.step()
"""
FIGURES = """\
total += model(batch[0]).pow(2).mean().item()
sizes.append(len(batch[0]))
"""
LOOPS = {  # the lines before the body of a loop, and how deep that is
    "bar entered": ("with tqdm({loader}) as source:\n    for batch in source:\n", 2),
    "bar entered and counted": ("with tqdm({loader}) as source:\n    for i, batch in enumerate(source):\n", 2),
    "bar assigned": ("source = tqdm({loader})\nfor batch in source:\n", 1),
    "alias": ("source = {loader}\nfor batch in source:\n", 1),
    "alias counted": ("source = {loader}\nfor i, batch in enumerate(source):\n", 1),
    "iterator": ("source = iter({loader})\nfor batch in source:\n", 1),
}


def loop(form: str, loader: str, body: str, depth: int) -> str:
    head, inner = LOOPS[form]
    return textwrap.indent(head.format(loader=loader) + textwrap.indent(body, "    " * inner), "    " * depth).rstrip()


@pytest.mark.parametrize("form", LOOPS)
def test_the_loader_of_the_evaluation_is_not_one_of_the_training(tmp_path: Path, form: str) -> None:
    script = SCRIPT.format(
        training=loop(form, "train_loader", STEP, 2), evaluation=loop(form, "valid_loader", FIGURES, 3)
    )
    result = conversion(tmp_path, script)
    (text,) = (file.text for file in result.files)
    assert "train_loader = rd.distribute_loader(train_loader)" in text
    assert "rd.distribute_loader(valid_loader)" not in text
    assert not [place.message for place in result.listed if "rank 0's share" in place.message]


def test_one_variable_that_may_hold_both_is_that_of_both(tmp_path: Path) -> None:
    training = loop("alias", "train_loader if epoch else valid_loader", STEP, 2)
    script = SCRIPT.format(training=training, evaluation=loop("alias", "valid_loader", FIGURES, 3))
    (text,) = (file.text for file in conversion(tmp_path, script).files)
    assert "rd.distribute_loader(train_loader)" in text and "rd.distribute_loader(valid_loader)" in text
