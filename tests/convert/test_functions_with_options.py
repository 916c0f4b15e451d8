"""Functions of libraries that functools.partial gives some options: they print and write as the functions do."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import conversion

SCRIPT = """\
import functools
import sys
from functools import partial

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

MADE
loader = DataLoader(TensorDataset(torch.randn(48, 6)), batch_size=8)
model = nn.Linear(6, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for (x,) in loader:
    out = model(x)
    loss = out.pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    highest = out.max()
USED
"""
PRINTS = {
    "print itself": ("print = partial(print, flush=True)", "print(highest.item())"),
    "with the module": ("print = functools.partial(print, file=sys.stderr)", "print(highest.item())"),
    "another name": ("say = partial(print, flush=True)", "say(highest.item())"),
}
WRITES = {
    "a checkpoint": ("save = partial(torch.save, pickle_protocol=4)", 'save(model.state_dict(), "last.pt")'),
    "an array": ('write = partial(np.savetxt, fmt="%s")', 'write("last.txt", np.ones(3))'),
}


def text_of(folder: Path, made: str, used: str) -> tuple[str, list[str]]:
    result = conversion(folder, SCRIPT.replace("MADE", made).replace("USED", used))
    assert not result.refusals
    (text,) = [file.text for file in result.files if file.path.name == "train.py"]
    return text, [finding.message for finding in result.listed]


@pytest.mark.parametrize("form", PRINTS)
def test_rank_0_alone_prints_and_figures_are_listed(tmp_path: Path, form: str) -> None:
    text, listed = text_of(tmp_path, *PRINTS[form])
    assert "from multigpu import print_main as print" in text
    assert any("highest.item()" in message for message in listed)


@pytest.mark.parametrize("form", WRITES)
def test_rank_0_alone_writes(tmp_path: Path, form: str) -> None:
    text, _ = text_of(tmp_path, *WRITES[form])
    assert f"if rd.is_main_process():\n    {WRITES[form][1]}" in text
