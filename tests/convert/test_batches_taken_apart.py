"""Figures of batches that a loop takes apart, in the ways in which scripts do it: they are reduced over the ranks."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import conversion, converted

SCRIPT = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

loader = DataLoader(TensorDataset(torch.randn(64, 8), torch.randint(0, 3, (64,))), 8, shuffle=True)
model = nn.Linear(8, 3)
optimizer = torch.optim.SGD(model.parameters(), 0.1)


def moved(batch):
    return [part.to("cpu") for part in batch]


def outputs_of(batch):
    x, y = (part.to("cpu") for part in batch)
    return model(x), y


hits = 0.0
for LOOP:
    APART
    hit = (out.argmax(1) == y).float().mean()
    optimizer.zero_grad()
    nn.functional.cross_entropy(out, y).backward()
    optimizer.step()
    hits += hit.item()
print(hits / len(loader))
"""
REDUCED = "hits += rd.reduce_loss(hit).item()"


def script(apart: str, loop: str = "batch in loader") -> str:
    return SCRIPT.replace("LOOP", loop).replace("APART", apart)


@pytest.mark.parametrize("loop", ["batch in loader", "i, batch in enumerate(loader)"])
@pytest.mark.parametrize(
    "apart",
    [
        "x, y = batch; out = model(x)",
        "x, y = batch[0], batch[1]; out = model(x)",
        "x = batch[0].to('cpu'); y = batch[-1].to('cpu'); out = model(x)",
        "x, y = (part.to('cpu') for part in batch); out = model(x)",
        "x, y = [part.to('cpu') for part in batch]; out = model(x)",
        "batch = tuple(part.to('cpu') for part in batch); out, y = model(batch[0]), batch[1]",
        "batch = {name: part.to('cpu') for name, part in batch.items()}; out, y = model(batch['x']), batch['y']",
        "x, y = moved(batch); out = model(x)",
        "out, y = outputs_of(batch)",
        "out = model(*batch[:-1]); y = batch[-1]",
    ],
)
def test_a_mean_over_the_samples_is_reduced(tmp_path: Path, apart: str, loop: str) -> None:
    assert REDUCED in converted(tmp_path, script(apart, loop))


def test_a_batch_that_the_model_is_given_is_one_tensor(tmp_path: Path) -> None:
    """What is computed from its first row is no mean over the samples."""
    one = script("out = model(batch); y = torch.zeros(len(batch), dtype=torch.long)")
    result = conversion(tmp_path, one.replace("hit.item()", "batch[0].mean().item()"))
    assert any("hits" in finding.message for finding in result.listed)
    assert "reduce_loss(batch[0]" not in result.files[0].text


def test_a_list_of_images_has_one_for_each_sample(tmp_path: Path) -> None:
    """A loop that unpacks a batch of lists, as of detection, goes through the samples."""
    text = script(
        "images = [image.to('cpu') for image in images]; out = model(torch.stack(images))", "images, y in loader"
    )
    result = conversion(tmp_path, text.replace("hit.item()", "images[0].mean().item()"))
    assert "reduce_loss(images[0]" not in result.files[0].text


COUNTS = """\
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

loader = DataLoader(TensorDataset(torch.randn(64, 8), torch.randint(0, 3, (64,))), 8, shuffle=True)
model = nn.Linear(8, 3)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
table, hits = np.zeros((3, 3)), [[] for _ in range(3)]
for x, y in loader:
    out = model(x)
    optimizer.zero_grad()
    nn.functional.cross_entropy(out, y).backward()
    optimizer.step()
    for label, guess in zip(y, out.argmax(1)):
        COUNT
print(table.sum(), hits)
"""


@pytest.mark.parametrize(
    "count",
    [
        "table[label, guess] += 1",
        "table[int(label)][int(guess)] += 1",
        "hits[0].append(int(label == guess))",
        "if label == guess:\n            hits[0].append(1.0)\n        else:\n            hits[0].append(0.0)",
    ],
)
def test_what_is_counted_by_sample_is_listed(tmp_path: Path, count: str) -> None:
    result = conversion(tmp_path, COUNTS.replace("COUNT", count))
    assert result.listed and not result.refusals
