"""Samples that a library mixes, or a loader's own function: each rank mixes its own, which the plan lists."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import conversion

SCRIPT = """\
import random

import numpy as np
import torch
from timm.data import Mixup
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset, default_collate
from torchvision.transforms import v2

data = TensorDataset(torch.randn(24, 3, 8, 8), torch.randint(0, 3, (24,)))


def halves(batch):
    x, y = default_collate(batch)
    share = np.random.beta(1, 1)
    order = torch.randperm(len(x))
    return share * x + (1 - share) * x[order], F.one_hot(y, 3).float()


def noisy(batch):
    return default_collate([(x + random.random(), y) for x, y in batch])


class Flipped:
    def __call__(self, batch):
        return self.mix(*default_collate(batch))

    def mix(self, x, y):
        share = np.random.beta(1, 1)
        return share * x + (1 - share) * x.flip(0), y


mix = {mix}
loader = DataLoader(data, batch_size=4, shuffle=True{collate})
model = nn.Sequential(nn.Flatten(), nn.Linear(192, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in loader:
    {step}
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
MIXED = "x, y = mix(x, y)"
KINDS = {
    "torchvision": ("v2.MixUp(num_classes=3)", "", MIXED, ["mix(x, y)"]),
    "one of two": (
        "v2.RandomChoice([v2.CutMix(num_classes=3), v2.MixUp(num_classes=3)])",
        "",
        MIXED,
        ["mix(x, y)"],
    ),
    "timm": ("Mixup(mixup_alpha=0.8, num_classes=3)", "", MIXED, ["mix(x, y)"]),
    "in a lambda": (
        "v2.CutMix(num_classes=3)",
        ", collate_fn=lambda batch: mix(*default_collate(batch))",
        "pass",
        ["mix(*default_collate(batch))"],
    ),
    "a function": (
        "None",
        ", collate_fn=halves",
        "pass",
        ["np.random.beta(1, 1)", "torch.randperm(len(x))"],
    ),
    "an object": ("None", ", collate_fn=Flipped()", "pass", ["np.random.beta(1, 1)"]),
    "for each sample": ("None", ", collate_fn=noisy", "pass", []),
    "other transforms": ("v2.Normalize([0.0] * 3, [1.0] * 3)", "", "x = mix(x)", []),
}


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_mixed_by_the_draws_of_a_rank_is_listed(tmp_path: Path, kind: str) -> None:
    mix, collate, step, expected = KINDS[kind]
    result = conversion(tmp_path, SCRIPT.format(mix=mix, collate=collate, step=step))
    assert not result.refusals
    messages = [finding.message for finding in (*result.findings, *result.listed)]
    drawn = {text.partition(": ")[2].rpartition(", ")[0] for text in messages if text.startswith("each rank draws its")}
    assert drawn == set(expected)
