"""A loss that counts the padding of its batch: each rank makes whole batches, and takes its rows."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from convert.additions_of import write_converted
from convert.conversion import conversion, converted

SCRIPT = """\
import numpy as np
import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

torch.manual_seed(0)
rows = [torch.randn(3 + 5 * n % 7, 4) for n in range(22)]


def collate(batch):
    {collate}


loader = DataLoader(rows, 4, collate_fn=collate)
model = nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x in loader:
    {loss}
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{{loss.item():.5f}}")
"""
MSE = "loss = nn.functional.mse_loss(model(x), x.cumsum(1))"
PADDED = "return pad_sequence(batch, batch_first=True)"
BY_HAND = """out = torch.zeros(len(batch), max(len(x) for x in batch), 4)
    for n, x in enumerate(batch):
        out[n, :len(x)] = x
    return out"""
OF_LISTS = """longest = max(map(len, batch))
    return torch.stack([nn.functional.pad(x, (0, 0, 0, longest - len(x))) for x in batch])"""
SAME = {
    "pad_sequence": (PADDED, MSE),
    "by place": ("return pad_sequence(batch, True)", "loss = (model(x) - x).abs().mean()"),
    "by hand": (BY_HAND, "loss = (model(x) - x).pow(2).sum(2).mean(1).mean()"),
    "lists": (OF_LISTS, "loss = nn.MSELoss()(model(x), x + 1)"),
}
APART = {
    "samples in the second dimension": ("return pad_sequence(batch)", MSE),
    "transposed": (BY_HAND.replace("return out", "return out.transpose(0, 1)"), MSE),
    "packed": (
        PADDED,
        "n = (x != 0).any(2).sum(1); p = nn.utils.rnn.pack_padded_sequence(x, n, True, False)\n    " + MSE,
    ),
    "as long as the longest of the rank": (PADDED, "lengths = (x != 0).any(2).sum(1); most = lengths.max(); " + MSE),
    "stacked along the second": (OF_LISTS.replace("in batch])", "in batch], dim=1)"), MSE),
}


@pytest.mark.parametrize("form", SAME)
def test_each_rank_makes_whole_batches_where_samples_come_first(tmp_path: Path, form: str) -> None:
    collate, loss = SAME[form]
    result = conversion(tmp_path, SCRIPT.format(collate=collate, loss=loss))
    assert "loader = rd.distribute_loader(loader, pad_whole=True)" in result.files[0].text
    assert not [finding for finding in result.findings if finding.code == "RF302"]


@pytest.mark.parametrize("form", APART)
def test_a_loss_over_padding_is_listed_where_samples_may_not_come_first(tmp_path: Path, form: str) -> None:
    collate, loss = APART[form]
    result = conversion(tmp_path, SCRIPT.format(collate=collate, loss=loss))
    assert "loader = rd.distribute_loader(loader)\n" in result.files[0].text
    assert [bool(finding.edits) for finding in result.findings if finding.code == "RF302"] == [False]


def test_batches_are_split_as_ever_where_the_loss_leaves_the_padding_out(tmp_path: Path) -> None:
    masked = "mask = x != 0; loss = ((model(x) - x).pow(2) * mask).sum() / mask.sum()"
    assert "loader = rd.distribute_loader(loader)" in converted(tmp_path, SCRIPT.format(collate=PADDED, loss=masked))


@pytest.mark.usefixtures("forked_python")
def test_two_processes_have_the_losses_of_one(tmp_path: Path) -> None:
    collate, loss = SAME["by hand"]
    script = SCRIPT.format(collate=collate, loss=loss)
    write_converted(tmp_path, conversion(tmp_path, script))
    (tmp_path / "before.py").write_text(script)
    environment = os.environ | {"RETROFIT_BATCH": "global", "OMP_NUM_THREADS": "1"}
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", "train.py"]
    one, two = (
        subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True).stdout
        for command in ([sys.executable, "before.py"], torchrun)
    )
    losses = [float(line) for line in two.splitlines() if line[:1].isdigit()]
    assert losses == pytest.approx([float(line) for line in one.splitlines()], rel=1e-4)
