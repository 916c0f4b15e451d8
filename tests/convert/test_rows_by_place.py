"""Rows of a batch that a loss takes by their place in it, and draws among its samples: listed, as ranks have parts."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import conversion

SCRIPT = """\
import random
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

loader = DataLoader(TensorDataset(torch.randn(48, 6), torch.randint(0, 3, (48,))), batch_size=8)
model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in loader:
    out = model(x)
    LINES
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
BY_PLACE = {
    "the next sample": "loss = (out[1:] - out[:-1]).abs().mean()",
    "the last sample": "loss = (out - out[-1:]).pow(2).mean()",
    "every second one": "loss = F.mse_loss(out[::2], out[1::2])",
    "the halves": "n = len(x) // 2\nloss = F.mse_loss(out[:n], out[n : 2 * n])",
    "parts": "a, b = out.chunk(2)\nloss = F.mse_loss(a, b)",
    "parts by a function": "a, b = torch.chunk(out, 2)\nloss = F.mse_loss(a, b)",
    "moved by one": "other = torch.cat([x[1:], x[:1]])\nloss = F.mse_loss(out, other[:, :3])",
    "by numbers": "loss = F.mse_loss(out, x[torch.arange(len(x)) - 1][:, :3])",
    "from the end": "loss = F.mse_loss(out, x[list(range(len(x)))[::-1]][:, :3])",
    "the first sample": "loss = (out - out[0]).pow(2).mean()",
    "halves by a view": "both = out.view(2, -1, 3)\nloss = F.mse_loss(both[0], both[1])",
    "pairs in a loop": (
        "loss = 0.0\nfor i in range(0, len(x), 2):\n    loss = loss + F.mse_loss(out[i], out[i + 1]) / len(x)"
    ),
    "pairs by two numbers": (
        "loss = 0.0\nfor i, j in zip(range(4), range(4, 8)):\n    loss = loss + F.mse_loss(out[i], out[j]) / len(x)"
    ),
    "the one before, in a loop": (
        "loss = torch.stack([F.mse_loss(out[i], out[i - 1]) for i in range(1, len(out))]).mean()"
    ),
    "the one before, by its number": (
        "loss = 0.0\nfor i, row in enumerate(out):\n    loss = loss + F.mse_loss(row, out[i - 1]) / len(x)"
    ),
    "a partner that is mixed in": (
        "mixed = x.clone()\nfor i in range(x.size(0)):\n    mixed[i] = 0.7 * x[i] + 0.3 * x[x.size(0) - 1 - i]\n"
        "loss = F.cross_entropy(model(mixed), y)"
    ),
}
OF_EACH = {
    "parts of each sample": "a, b = model[0](x).chunk(2, dim=1)\nloss = F.mse_loss(a, b)",
    "parts along the last axis": "a, b = torch.chunk(model[0](x), 2, -1)\nloss = F.mse_loss(a, b)",
    "views": "a, b = model(torch.cat([x, x.flip(1)])).chunk(2)\nloss = F.mse_loss(a, b)",
    "views by their size": (
        "both = model(torch.cat([x, x.flip(1)]))\nloss = F.mse_loss(both[: len(x)], both[len(x) :])"
    ),
    "an entry of each row": "loss = -out.log_softmax(1)[torch.arange(len(y)), y].mean()",
    "those of a class": "loss = F.cross_entropy(out[y > 0], y[y > 0])",
    "one part after the other": (
        "loss = 0.0\nfor i in range(0, len(x), 2):\n"
        '    loss = loss + F.cross_entropy(model(x[i : i + 2]), y[i : i + 2], reduction="sum")\nloss = loss / len(x)'
    ),
    "one sample after the other": (
        "loss = 0.0\nfor i in range(len(x)):\n"
        "    loss = loss + F.cross_entropy(out[i].unsqueeze(0), y[i].unsqueeze(0)) / len(x)"
    ),
    "steps of each sample": (
        "loss = 0.0\nfor i in range(len(x)):\n    row = out[i]\n    for t in range(1, len(row)):\n"
        "        loss = loss + (row[t] - row[t - 1]).abs() / len(x)"
    ),
    "steps along another axis": (
        "loss = F.cross_entropy(out, y)\nfor t in range(1, 3):\n"
        "    loss = loss + (out[:, t] - out[:, t - 1]).pow(2).mean()"
    ),
    "a view of each sample": "loss = out.view(len(x), 3, 1).pow(2).mean() + out.view(-1, 3).abs().mean()",
    "outputs one after the other": (
        "outs = [out, model(x), model(2 * x)]\nloss = F.cross_entropy(outs[0], y)\n"
        "for i in range(2):\n    loss = loss + F.mse_loss(outs[i], outs[i + 1])"
    ),
    "outputs in a list": "outs = [out, model(x)]\nloss = sum(F.cross_entropy(each, y) for each in outs[1:])",
    "some views as one": "views = [x, x.flip(1), 2 * x]\nloss = model(torch.cat(views[1:])).pow(2).mean()",
    "some of a list": "outs = [out, model(x)]\nouts = [outs[0], *outs[1:]]\nloss = F.cross_entropy(sum(outs), y)",
    "parts of the batch": (
        "pair = (x, y, None)\na, b = [part.cpu() for part in pair[:-1]] if len(x) else pair[:-1]\n"
        "loss = F.cross_entropy(model(a), b)"
    ),
    "what is only shown": 'loss = F.cross_entropy(out, y)\nwith torch.no_grad():\n    print("first", out[:4])',
}
PARTNERS = {
    "an order": "loss = F.mse_loss(out, out[torch.randperm(x.size(0))])",
    "an order of numpy": "loss = F.mse_loss(out, out[np.random.permutation(len(x))])",
    "others": "loss = F.mse_loss(out, out[torch.randint(len(x), (len(x),))])",
    "others between bounds": "loss = F.mse_loss(out, out[torch.randint(0, x.shape[0], (x.shape[0],))])",
    "a choice": "loss = F.mse_loss(out[:3], out[np.random.choice(len(x), 3)])",
    "a sample": "loss = out[random.sample(range(len(x)), 2)].pow(2).mean()",
    "a shuffled list": "rows = list(range(len(x)))\nrandom.shuffle(rows)\nloss = F.mse_loss(out, out[rows])",
}
OWN_DRAWS = {
    "a number for each sample": "t = torch.randint(0, 1000, (len(x),))\nloss = (out.mean(1) * t / 1000).mean()",
    "noise": "loss = F.mse_loss(out, torch.randn(len(x), 3))",
    "an order of the features": "loss = F.mse_loss(out, x[:, torch.randperm(6)][:, :3])",
}


def listed(tmp_path: Path, lines: str, text: str) -> list[str]:
    result = conversion(tmp_path, SCRIPT.replace("LINES", lines.replace("\n", "\n    ")))
    assert not result.refusals
    places = {f.place: f.message for f in (*result.findings, *result.listed) if not f.edits and text in f.message}
    return list(places.values())


@pytest.mark.parametrize("form", BY_PLACE)
def test_rows_by_their_place_are_listed(tmp_path: Path, form: str) -> None:
    assert listed(tmp_path, BY_PLACE[form], "by their place in the batch")


@pytest.mark.parametrize("form", OF_EACH)
def test_what_each_sample_has_for_itself_is_not(tmp_path: Path, form: str) -> None:
    assert not listed(tmp_path, OF_EACH[form], "by their place in the batch")


@pytest.mark.parametrize("form", PARTNERS)
def test_draws_among_the_samples_are_listed(tmp_path: Path, form: str) -> None:
    assert len(listed(tmp_path, PARTNERS[form], "samples meet others of the same rank alone")) == 1


@pytest.mark.parametrize("form", OWN_DRAWS)
def test_draws_for_each_sample_are_not(tmp_path: Path, form: str) -> None:
    assert not listed(tmp_path, OWN_DRAWS[form], "samples meet others of the same rank alone")
