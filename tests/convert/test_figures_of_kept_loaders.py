"""Figures of batches whose loader the loop does not name: it is in a list, or comes through a call."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import conversion

SCRIPT = """\
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def made():
    return DataLoader(TensorDataset(torch.randn(48, 6), torch.randint(0, 3, (48,))), batch_size=8, shuffle=True)


def train(batches, k):
    for x, y in batches:
        out = model(x)
        loss = F.cross_entropy(out, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        right = (out.argmax(1) == y).float().mean()
        highest = out.max()
    print(k, right.item())
    print("highest", highest.item())


model = nn.Linear(6, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
LINES
"""
FILLED = "for k in range(2):\n    kept[k] = made()\n"
EACH = "for k in range(2):\n    train(kept[k], k)"
KEPT = {
    "a list of zeros": f"kept = [0] * 2\n{FILLED}{EACH}",
    "a list of None": f"kept = [None, None]\nkept[0] = made()\nkept[1] = made()\n{EACH}",
    "a list made longer": f"kept = []\nfor k in range(2):\n    kept.append(made())\n{EACH}",
    "a dict": f"kept = {{}}\n{FILLED}{EACH}",
    "a spread tuple": "train(*(made(), 0))",
    "a spread dict": "train(**{'batches': made(), 'k': 0})",
    "a pair by name": "pair = made(), 0\ntrain(*pair)",
    "an iterator": f"kept = [0] * 2\n{FILLED}for k in range(2):\n    train(iter(kept[k]), k)",
}


@pytest.mark.parametrize("form", KEPT)
def test_their_figures_are_listed(tmp_path: Path, form: str) -> None:
    result = conversion(tmp_path, SCRIPT.replace("LINES", KEPT[form]))
    assert not result.refusals
    (text,) = [file.text for file in result.files if file.path.name == "train.py"]
    assert text.count("rd.distribute_loader(") >= 1
    listed = " ".join(finding.message for finding in result.listed)
    assert "right.item()" in listed and "highest.item()" in listed
