"""Codebooks of moving averages, in the layers that a list, a dict or a sequence of modules holds."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import converted
from verify.projects.launch import Launcher

from retrofit.cli import main

SCRIPT = """\
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Base(nn.Module):
    def __init__(self, *args):
        super().__init__()
        self.build(*args)


class Codes(Base):
    def build(self, size, count):
        codes = torch.randn(size, count)
        self.count = count
        self.first = nn.Linear(size, size)
        self.register_buffer("codes", codes)
        self.register_buffer("counts", torch.zeros(count))
        self.register_buffer("sums", codes.clone())

    def forward(self, x):
        x = self.first(x.float())
        distances = x.pow(2).sum(1, keepdim=True) - 2 * x @ self.codes + self.codes.pow(2).sum(0, keepdim=True)
        index = distances.argmin(1)
        chosen = F.one_hot(index, self.count).type(x.dtype)
        code = F.embedding(index, self.codes.t())
        if self.training:
            count, total = chosen.sum(0), x.transpose(0, 1) @ chosen
            self.counts.data.mul_(0.9).add_(count, alpha=0.1)
            self.sums.data.mul_(0.9).add_(total, alpha=0.1)
            self.codes.data.copy_(self.sums / (self.counts + 1e-5).unsqueeze(0))
        return x + (code - x).detach(), (code.detach() - x).pow(2).mean()


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = nn.Linear(6, 4), nn.Linear(4, 6)
        {parts}

    def forward(self, x):
        x = self.encoder(x)
        losses = []
        {run}
            losses.append(loss)
        return self.decoder(x), losses


torch.manual_seed(0)
loader = DataLoader(TensorDataset(torch.randn(30, 6)), batch_size=8)
model = Model()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for epoch in range(3):
    for (x,) in loader:
        y, losses = model(x)
        loss = (y - x).pow(2).mean() + 0.25 * sum(losses)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(epoch, f"{{loss.item():.4f}}")
"""
LOOP = "for part in self.parts:\n            x, loss = part(x)"
ENTRY = "for {0} in {1}:\n            x, loss = self.parts[{0}](x)"
REACHED = {
    "list": ("self.parts = nn.ModuleList([Codes(4, 8)])", LOOP),
    "comprehension": ("self.parts = nn.ModuleList(Codes(4, 8) for _ in range(2))", ENTRY.format("i", "range(2)")),
    "appended": ("self.parts = nn.ModuleList(); self.parts.append(Codes(4, 8))", LOOP),
    "added": ("self.parts = nn.ModuleList(); self.parts += [Codes(4, 8)]", LOOP),
    "filled before": ("parts = []; parts.append(Codes(4, 8)); self.parts = nn.ModuleList(parts)", LOOP),
    "dict": ("self.parts = nn.ModuleDict(); self.parts['a'] = Codes(4, 8)", ENTRY.format("name", "self.parts")),
    "items": (
        "self.parts = nn.ModuleDict({'a': Codes(4, 8)})",
        "for name, part in self.parts.items():\n            x, loss = part(x)",
    ),
    "sequence": ("self.parts = nn.Sequential(*[Codes(4, 8) for _ in range(2)])", LOOP),
    "several names": (
        "self.parts = nn.ModuleList([Codes(4, 8)])",
        "for i in range(1):\n            part, _ = self.parts[i], self.decoder\n            x, loss = part(x)",
    ),
}


@pytest.mark.parametrize("form", REACHED)
def test_the_sums_of_a_codebook_are_those_of_all_ranks(tmp_path: Path, form: str) -> None:
    parts, run = REACHED[form]
    text = "\n".join(converted(tmp_path, SCRIPT.format(parts=parts, run=run)))
    expected = "count, total = rd.loss.batch_sum(chosen.sum(0)), rd.loss.batch_sum(x.transpose(0, 1) @ chosen)"
    assert expected in text
    assert "one_process_only" not in text


def test_a_codebook_that_nothing_is_known_to_run_is_refused(tmp_path: Path) -> None:
    run = "for i in range(1):\n            x, loss = getattr(self, f'part{i}')(x)"
    lines = converted(tmp_path, SCRIPT.format(parts="self.part0 = Codes(4, 8)", run=run))
    (error,) = [line for line in lines if "one_process_only" in line]
    assert "is a statistic of the batches" in error


def test_processes_train_the_codebook_of_one(tmp_path: Path, launcher: Launcher) -> None:
    """The last batch has 6 samples."""
    for name in ("alone", "together"):
        (tmp_path / name).mkdir()
        parts, run = REACHED["several names"]
        (tmp_path / name / "train.py").write_text(SCRIPT.format(parts=parts, run=run))
    assert main(["convert", str(tmp_path / "together" / "train.py"), "--write"]) == 0
    (alone,) = launcher.run(tmp_path / "alone", "train.py", [])["outputs"]
    run = launcher.run(tmp_path / "together", "train.py", [], world_size=2, RETROFIT_BATCH="global")
    assert run["statuses"] == [0, 0], run["outputs"]
    assert alone.strip() in run["outputs"][0]


NORMED = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.parts = nn.ModuleList([nn.BatchNorm1d(4), nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))])

    def forward(self, x):
        for i in range(1):
            first, second = self.parts[i], self.parts[i + 1]
            x = second(first(x))
        return x


loader = DataLoader(TensorDataset(torch.randn(32, 4)), batch_size=8)
model = Model()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for (x,) in loader:
    loss = model(x).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def test_a_layer_taken_out_of_a_list_stays_a_part_of_its_model(tmp_path: Path) -> None:
    text = "\n".join(converted(tmp_path, NORMED))
    assert "model = rd.distribute_model(model)" in text
    assert "convert_sync_batchnorm" not in text
