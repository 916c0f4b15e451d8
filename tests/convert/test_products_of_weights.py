"""Products of weights with themselves, as of the nodes of a graph that is learned: no samples are compared."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import conversion

SCRIPT = """\
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Mix(nn.Module):
    def __init__(self):
        super().__init__()
        self.own = nn.Parameter(torch.randn(5, 3))
        self.table = nn.Embedding(5, 3)
        self.register_buffer("fixed", torch.eye(5))
        self.linear = nn.Linear(4, 4)

    def forward(self, x, nodes):
        near = F.softmax(F.relu(PRODUCT), dim=1)
        return self.linear(torch.einsum("nm,bmc->bnc", near, x))


class Layers(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList()
        for _ in range(2):
            self.layers.append(Mix())

    def forward(self, x, nodes):
        for number in range(2):
            x = LAYER(x, nodes)
        return x


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.nodes = nn.Parameter(torch.randn(5, 3))
        self.inner = Layers()

    def forward(self, x):
        return self.inner(x, HANDED).sum(-1)


torch.manual_seed(0)
x = torch.randn(32, 5, 4)
loader = DataLoader(TensorDataset(x, x.sum(-1)), batch_size=8, shuffle=True)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for inputs, targets in loader:
    loss = F.mse_loss(model(inputs), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
PRODUCTS = {
    "parameter of a layer": "torch.mm(self.own, self.own.t())",
    "weights of an embedding": "self.table.weight @ self.table.weight.T",
    "buffer": "torch.matmul(self.fixed, self.fixed.transpose(0, 1))",
    "handed on": "torch.mm(nodes, nodes.transpose(0, 1))",
    "computed from weights": "torch.tanh(nodes) @ torch.tanh(nodes).t()",
}


def _compares_samples(
    folder: Path, product: str, handed: str = "self.nodes", layer: str = "self.layers[number]"
) -> bool:
    script = SCRIPT.replace("PRODUCT", product).replace("HANDED", handed).replace("LAYER", layer)
    result = conversion(folder, script)
    return bool(result.refusals) or any("rd.loss.batch_rows(" in file.text for file in result.files)


@pytest.mark.parametrize("product", PRODUCTS.values(), ids=PRODUCTS)
def test_a_product_of_weights_compares_no_samples(tmp_path: Path, product: str) -> None:
    assert not _compares_samples(tmp_path, product)


@pytest.mark.parametrize("layer", ["self.layers[0]", "list(self.layers)[number]"])
def test_weights_are_followed_through_a_list_of_layers(tmp_path: Path, layer: str) -> None:
    assert not _compares_samples(tmp_path, PRODUCTS["handed on"], layer=layer)


def test_what_is_computed_from_samples_is_compared(tmp_path: Path) -> None:
    assert _compares_samples(tmp_path, PRODUCTS["handed on"], handed="x.mean(1) @ torch.ones(4, 3)")
    assert _compares_samples(tmp_path, PRODUCTS["handed on"], handed="self.nodes[(x[:, 0, 0] > 0).long()]")
    assert _compares_samples(tmp_path, "torch.mm(x[:, 0], x[:, 0].t())")
