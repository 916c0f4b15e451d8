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


NODES = """\
import torch
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GCNConv


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = GCNConv(4, 1)

    def forward(self, data):
        return self.conv(data.x, data.edge_index)

    def errors(self, data, batch):
        return (self.conv(data.x, data.edge_index) - data.y) ** 2

    def error(self, data):
        return ((self.conv(data.x, data.edge_index) - data.y) ** 2).mean()


torch.manual_seed(0)
loader = DataLoader(graphs, batch_size=8, shuffle=True)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    for data in loader:
        LOSS
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


@pytest.mark.parametrize("count", ["out.size(0)", "len(out)", "out.shape[0]", "out.numel()", "data.num_nodes"])
def test_a_sum_over_nodes_is_divided_by_the_nodes_of_all_ranks(count: str, tmp_path: Path) -> None:
    loss = f"out = model(data)\n        loss = (out - data.y).pow(2).sum() / {count}"
    text = conversion(tmp_path, NODES.replace("LOSS", loss)).files[0].text
    assert f".sum() / rd.loss.rank_share(rd.loss.batch_count({count}))\n" in text


@pytest.mark.parametrize(
    "loss",
    [
        "loss = ((model(data) - data.y) ** 2).mean()",
        "loss = model.errors(data, batch=data.batch).mean()",  # it finds neighbours in its own graph
        "loss = model.error(data)",
    ],
)
def test_a_mean_over_nodes_is_one_of_all_processes(loss: str, tmp_path: Path) -> None:
    text = conversion(tmp_path, NODES.replace("LOSS", loss)).files[0].text
    assert text.count("rd.loss.chosen_mean(") == 1


def test_a_sum_over_graphs_is_divided_by_its_own(tmp_path: Path) -> None:
    loss = "loss = (model(data) - data.y).pow(2).sum() / data.num_graphs"
    text = conversion(tmp_path, NODES.replace("LOSS", loss)).files[0].text
    assert "batch_count" not in text
    assert "rd.loss.sum_loss" not in text
