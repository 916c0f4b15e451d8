"""Loaders in a dict, of which a method draws from the one that its caller names."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import conversion

SCRIPT = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Batches:
    def __init__(self, size):
        self.loaders, self.iters = {}, {}
        for split in ["train", "val"]:
            data = TensorDataset(torch.randn(8, 3), torch.randn(8, 1))
            self.loaders[split] = DataLoader(data, size, shuffle=split == "train")
            self.iters[split] = iter(self.loaders[split])

    def get_batch(self, split):
        try:
            batch = next(self.iters[split])
        except StopIteration:
            self.iters[split] = iter(self.loaders[split])
            batch = next(self.iters[split])
        return batch


def evaluate(model, batches, split="val"):
    with torch.no_grad():
        total = 0
        for i in range(2):
            x, y = batches.get_batch(split)
            total += (model(x) - y).abs().sum().item()
    print(total)


batches = Batches(4)
model = nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(20):
    x, y = batches.get_batch("train")
    loss = (model(x) - y).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    EVALUATION
"""
EVALUATIONS = {"by default": "evaluate(model, batches)", "by keyword": "evaluate(model, batches, split='test')"}


@pytest.mark.parametrize("form", EVALUATIONS)
def test_a_draw_that_training_and_evaluation_share_is_refused(tmp_path: Path, form: str) -> None:
    (refusal,) = conversion(tmp_path, SCRIPT.replace("EVALUATION", EVALUATIONS[form])).refusals
    assert "self.loaders[split] is of whichever key a caller gives" in str(refusal)


def test_a_draw_of_one_key_alone_is_the_training_loader(tmp_path: Path) -> None:
    (file,) = (f for f in conversion(tmp_path, SCRIPT.replace("EVALUATION", "")).files if f.path.name == "train.py")
    assert "iter(rd.distribute_loader(self.loaders[split]))" in file.text
