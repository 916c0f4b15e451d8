"""A mean over words, or over what a mask leaves, is a mean over those of all processes."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import conversion, converted

SCRIPT = """\
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn, optim
from torch.nn.utils.rnn import pack_padded_sequence
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
words, tags = torch.randint(0, 5, (2, 22, 7))
loader = DataLoader(TensorDataset(words, tags, torch.randint(1, 8, (22,))), 4, shuffle=True)
model = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 5))
criterion = {criterion}
optimizer = optim.SGD(model.parameters(), lr=0.1)
for x, y, n in loader:
    optimizer.zero_grad()
    out = model(x)
    {select}
    loss = {loss}
    loss.backward()
    optimizer.step()
"""
PACK = "pack_padded_sequence({}, n, batch_first=True, enforce_sorted=False)"
CE, MSE = "nn.CrossEntropyLoss()", "nn.MSELoss()"
SOME = {
    "packed": (CE, f"out, y = {PACK.format('out')}[0], {PACK.format('y')}[0]", "criterion(out, y)"),
    "packed data": (CE, f"y = {PACK.format('y')}.data", f"criterion({PACK.format('out')}.data, y)"),
    "packed numbers": (MSE, f"z = {PACK.format('out')}[0]", f"criterion(z, {PACK.format('out.detach()')}[0])"),
    "masked": (CE, "pass", "criterion(out[y != 0], y[y != 0])"),
    "masked by a name": (
        CE,
        "keep = (y > 0).view(-1)\n    y = y.view(-1)[keep]",
        "criterion(out.view(-1, 5)[keep], y)",
    ),
    "masked_select": (
        MSE,
        "seen = y.gt(0)",
        "criterion(out[..., 0].masked_select(seen), y.float().masked_select(seen))",
    ),
    "ignored labels": (CE, "y[x == 0] = -100", "criterion(out.transpose(1, 2), y)"),
    "ignored labels of a library": (
        "nn.NLLLoss()",
        "collate = DataCollatorForTokenClassification(None)",
        "criterion(out.log_softmax(-1).transpose(1, 2), y)",
    ),
    "by a mask of the data": (CE, "pass", "criterion(out[n], y[n])"),
    "by a mask that is moved": (
        CE,
        "keep = [part.cpu() for part in (x, y, n)][2].clone()",
        "criterion(out.view(-1, 5)[keep.view(-1)], y.view(-1)[keep.view(-1)])",
    ),
    "places": (CE, "at = torch.where(y != 0)", "criterion(out[at], y[at])"),
    "places of an array": (CE, "at = np.where(y.numpy() > 0)", "criterion(out[at], y[at])"),
    "places in a row": (
        CE,
        "out, y = out.flatten(0, 1), y.flatten()\n    at = torch.where(y > 0)[0]",
        "criterion(out[at], y[at])",
    ),
    "flat places": (
        CE,
        "out, y = out.flatten(0, 1), y.flatten()\n    at = np.flatnonzero(y)",
        "criterion(out[at], y[at])",
    ),
    "in all of the other axis": (CE, "keep = n.bool()", "criterion(out[keep, :].transpose(1, 2), y[keep, :])"),
}
ALL = {
    "flattened": (CE, "pass", "criterion(out.view(-1, 5), y.view(-1))"),
    "moved": (CE, "pass", "criterion(out.transpose(1, 2), y)"),
    "part": (CE, "pass", "criterion(out[:, -1], y[:, -1])"),
    "a sum": ("nn.CrossEntropyLoss(reduction='sum')", "y[x == 0] = -100", "criterion(out.transpose(1, 2), y)"),
    "a level": (CE, "out = out.clamp(min=-100.0)", "criterion(out.transpose(1, 2), y)"),
    "shuffled": (CE, "order = torch.randperm(len(y))", "criterion(out.transpose(1, 2), y[order])"),
    "chosen values": (MSE, "at = torch.where(y != 0, 1, 2)", "criterion(out, torch.randn(5, 5)[at])"),
    "looked up": (MSE, "table = torch.randn(5, 5)", "criterion(out, table[y])"),
    "one": (MSE, "first = 0", "criterion(out[..., first], y[..., 1:].sum(-1, keepdim=True).float())"),
}


def made(tmp_path: Path, parts: tuple[str, str, str]) -> str:
    criterion, select, loss = parts
    lines = converted(tmp_path, SCRIPT.format(criterion=criterion, select=select, loss=loss))
    return next(line for line in lines if line.startswith("criterion = "))


@pytest.mark.parametrize("kind", SOME)
def test_the_count_is_that_of_all_processes(tmp_path: Path, kind: str) -> None:
    assert made(tmp_path, SOME[kind]) == f"criterion = rd.loss.distribute_criterion({SOME[kind][0]})"


@pytest.mark.parametrize("kind", ALL)
def test_a_mean_over_the_whole_batch_needs_no_count(tmp_path: Path, kind: str) -> None:
    assert made(tmp_path, ALL[kind]) == f"criterion = {ALL[kind][0]}"


PADDED = SCRIPT.replace(
    "loader = DataLoader(TensorDataset(words, tags, torch.randint(1, 8, (22,))), 4, shuffle=True)",
    """\
def collate(rows):
    x = nn.utils.rnn.pad_sequence([row[0] for row in rows], batch_first=True)
    y = nn.utils.rnn.pad_sequence([row[1] for row in rows], batch_first=TrueVALUE)
    return x, y.masked_fill(x == 3, -100), None


loader = DataLoader(TensorDataset(words, tags), 4, shuffle=True, collate_fn=collate)""",
)


@pytest.mark.parametrize("value", ["", ", padding_value=-100"])
def test_padding_that_counts_is_that_of_all_ranks_next_to_the_count(tmp_path: Path, value: str) -> None:
    loss = "criterion(out.transpose(1, 2), y)"
    result = conversion(tmp_path, PADDED.replace("VALUE", value).format(criterion=CE, select="pass", loss=loss))
    found = [bool(finding.edits) for finding in result.findings if finding.code == "RF302"]
    assert found == [True]
    assert ("pad_whole=True" in result.files[0].text) is not bool(value)
