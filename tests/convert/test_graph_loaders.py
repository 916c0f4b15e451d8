"""Loaders that other libraries derive from torch's: the libraries need not be installed to convert a script."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import conversion

SCRIPT = """\
import torch
from PACKAGE import DataLoader

torch.manual_seed(0)
train_loader = DataLoader(samples[:150], batch_size=16, shuffle=True)
test_loader = DataLoader(samples[150:], batch_size=16)
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)


def train():
    model.train()
    total = 0
    for data in train_loader:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(data.x), data.y)
        loss.backward()
        optimizer.step()
        total += loss.item() * data.num_graphs
    return total / len(train_loader.dataset)


@torch.no_grad()
def test(loader):
    model.eval()
    correct = 0
    for data in loader:
        correct += int((model(data.x).argmax(dim=-1) == data.y).sum())
    return correct / len(loader.dataset)


for epoch in range(5):
    print(epoch, train(), test(train_loader), test(test_loader))
"""


@pytest.mark.parametrize("package", ["torch_geometric.loader", "torch_geometric.data", "monai.data"])
def test_an_evaluation_over_the_batches_of_another_library_is_split(package: str, tmp_path: Path) -> None:
    result = conversion(tmp_path, SCRIPT.replace("PACKAGE", package))
    (changed,) = result.files
    assert "train_loader = rd.distribute_loader(train_loader)\n" in changed.text
    assert "for data in rd.share_batches(loader):" in changed.text
    assert "    correct = rd.sum_over_ranks(correct)\n    return" in changed.text
    assert "total += rd.reduce_total(rd.reduce_loss(loss).item() * data.num_graphs)" in changed.text
    assert not result.refusals and not result.listed
