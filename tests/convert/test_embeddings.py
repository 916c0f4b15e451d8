"""Tables of weights next to a model: rows scaled in place, weights that are used without a call."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import conversion, converted

SCRIPT = """\
import torch
import torch.nn.functional as F
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x, rows):
        return self.layer(x) + rows.mean()


{function}limit = 0.5
loader = DataLoader(TensorDataset(torch.arange(16), torch.randn(16, 3)), 4, shuffle=True)
net = Net()
table = {table}
optimizer = optim.SGD([*net.parameters(), *table.parameters()], lr=0.1)
for epoch in range(2):
    {train}
"""
FUNCTION = """\
def train(net, rows, optimizer):
    for i, x in loader:
        optimizer.zero_grad()
        net(x, rows).mean().backward()
        optimizer.step()


"""
LOOKED_UP = "for i, x in loader: optimizer.zero_grad(); net(x, {rows}).mean().backward(); optimizer.step()"
SCALED = {
    "keyword": ("nn.Embedding(16, 3, max_norm=0.5)", "table(i)"),
    "position": ("nn.Embedding(16, 3, None, 0.5)", "table(i)"),
    "variable": ("nn.Embedding(16, 3, max_norm=limit)", "table(i)"),
    "bag": ("nn.EmbeddingBag(16, 3, max_norm=0.5)", "table(i.view(-1, 1))"),
    "pretrained": ("nn.Embedding.from_pretrained(torch.randn(16, 3), freeze=False, max_norm=0.5)", "table(i)"),
    "function": ("nn.Embedding(16, 3)", "F.embedding(i, table.weight, max_norm=0.5)"),
}


@pytest.mark.parametrize("form", SCALED)
def test_rows_that_are_scaled_in_place_are_refused(tmp_path: Path, form: str) -> None:
    table, rows = SCALED[form]
    result = conversion(tmp_path, SCRIPT.format(function="", table=table, train=LOOKED_UP.format(rows=rows)))
    assert [refusal.kind for refusal in result.refusals] == ["renormalised-embedding"]


@pytest.mark.parametrize("table", ["nn.Embedding(16, 3)", "nn.Embedding(16, 3, max_norm=None)"])
def test_rows_that_are_not_scaled_are_converted(tmp_path: Path, table: str) -> None:
    converted(tmp_path, SCRIPT.format(function="", table=table, train=LOOKED_UP.format(rows="table(i)")))


LIST = "nn.ParameterList([nn.Parameter(torch.zeros(3))])"
DICT = "nn.ParameterDict({'rows': nn.Parameter(torch.zeros(3))})"
UNCALLED = {
    "given to the model": ("nn.Embedding(16, 3)", LOOKED_UP.format(rows="table.weight")),
    "given to a function": ("nn.Embedding(16, 3)", "train(net, table.weight, optimizer)"),
    "given by keyword": ("nn.Embedding(16, 3)", "train(net, rows=table.weight, optimizer=optimizer)"),
    "another name": ("nn.Embedding(16, 3)\nrows = table.weight", LOOKED_UP.format(rows="rows")),
    "list": (LIST, LOOKED_UP.format(rows="table[0]")),
    "dictionary": (DICT, LOOKED_UP.format(rows="table['rows']")),
}


@pytest.mark.parametrize("form", UNCALLED)
def test_weights_of_a_module_that_nothing_calls_are_averaged(tmp_path: Path, form: str) -> None:
    table, train = UNCALLED[form]
    function = FUNCTION if train.startswith("train(") else ""
    text = "\n".join(converted(tmp_path, SCRIPT.format(function=function, table=table, train=train)))
    assert "*map(rd.model.distribute_parameter, table.parameters())" in text


OWN = """\
class Table(nn.Embedding):
    def __init__(self, size, width, *args, **kwargs):
        super().__init__(size, width, SET*args, **kwargs)

    def forward(self, i):
        return F.embedding(i, 2 * self.weight, self.padding_idx, self.max_norm)


"""
NORMS = {
    "not given": ("", "Table(16, 3)", 0),
    "None": ("", "Table(16, 3, max_norm=None)", 0),
    "given by keyword": ("", "Table(16, 3, max_norm=0.5)", 1),
    "given by position": ("", "Table(16, 3, None, 0.5)", 1),
    "given by the class": ("padding_idx=None, max_norm=0.5, ", "Table(16, 3)", 1),
    "given by who knows": ("", "Table(16, 3, **{'max_norm': 0.5})", 1),
}


@pytest.mark.parametrize("form", NORMS)
def test_the_norm_of_an_own_class_is_that_which_calls_give_it(tmp_path: Path, form: str) -> None:
    inside, table, refused = NORMS[form]
    train = LOOKED_UP.format(rows="table(i)")
    result = conversion(tmp_path, SCRIPT.format(function=OWN.replace("SET", inside), table=table, train=train))
    assert [refusal.kind for refusal in result.refusals] == ["renormalised-embedding"] * refused
