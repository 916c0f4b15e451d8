"""Steps that a function of the training leaves out, by the loss or by its samples, and what only looks like a step."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import conversion, converted

SCRIPT = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Patience:
    def __init__(self):
        self.best, self.bad = 1e9, 0

    def step(self, value):
        self.bad = 0 if value < self.best else self.bad + 1
        self.best = min(value, self.best)
        return self.bad > 2


class Rate:
    def __init__(self, optimizer):
        self.optimizer = optimizer

    def step(self):
        self.optimizer.step()


def train_step(batch, number):
    x, y = batch
    loss = nn.functional.mse_loss(model(x), y)
    if CHECK:
        return {"loss": 0.0, "done": False}
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return {"loss": loss.item(), "done": number % 2 == 0}


torch.manual_seed(0)
x = torch.randn(32, 4)
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=8, shuffle=True)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
patience, rate, other = Patience(), Rate(optimizer), Rate(optimizer)
for number, batch in enumerate(loader):
    found = train_step(batch, number)
    if found["done"] and number > 0:
        if ENDS:
            break
"""


def _is_refused(folder: Path, check: str, ends: str = "number > 5") -> bool:
    return bool(conversion(folder, SCRIPT.replace("CHECK", check).replace("ENDS", ends)).refusals)


@pytest.mark.parametrize("check", ["x.abs().max() > 3", "(y > 4).any()", "batch[0].max() > 3", "not y.sum().item()"])
def test_a_function_that_returns_by_entries_of_the_batch_is_refused(tmp_path: Path, check: str) -> None:
    assert _is_refused(tmp_path, check)


@pytest.mark.parametrize("check", ["number > 9", "batch is None", "x.dim() != 2", "not model.training"])
def test_a_function_that_returns_by_what_all_ranks_know_is_converted(tmp_path: Path, check: str) -> None:
    assert not _is_refused(tmp_path, check)


def test_a_function_returns_by_the_loss_of_all_ranks(tmp_path: Path) -> None:
    lines = converted(tmp_path, SCRIPT.replace("CHECK", "not torch.isfinite(loss)").replace("ENDS", "number > 5"))
    assert "if not torch.isfinite(rd.reduce_loss(loss)):" in lines


def test_a_method_that_sets_no_weights_is_not_a_step(tmp_path: Path) -> None:
    assert not _is_refused(tmp_path, "not torch.isfinite(loss)", "patience.step(found['loss'])")
    assert _is_refused(tmp_path, "not torch.isfinite(loss)", "rate.step()")
    assert _is_refused(tmp_path, "not torch.isfinite(loss)", "optimizer.step()")


FEW = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
data = torch.randn(25, 4)
loader = DataLoader(TensorDataset(data, data.sum(1, keepdim=True)), batch_size=8, shuffle=True)
model = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in loader:
    if TEST:
        continue
    optimizer.zero_grad()
    nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()
"""
COUNT = "rd.loss.batch_count({})"


@pytest.mark.parametrize(
    ("test", "size"),
    [
        ("len(x) == 1", "len(x)"),
        ("x.size(0) < 2", "x.size(0)"),
        ("1 == y.shape[0]", "y.shape[0]"),
        ("len(y) <= 1", "len(y)"),
    ],
)
def test_a_batch_of_one_sample_is_one_of_all_ranks(tmp_path: Path, test: str, size: str) -> None:
    lines = converted(tmp_path, FEW.replace("TEST", test))
    assert f"if {test.replace(size, COUNT.format(size))}:" in lines


def test_a_function_returns_by_the_samples_of_all_ranks(tmp_path: Path) -> None:
    lines = converted(tmp_path, SCRIPT.replace("CHECK", "len(x) < 2").replace("ENDS", "number > 5"))
    assert "if rd.loss.batch_count(len(x)) < 2:" in lines


def test_a_batch_of_one_graph_is_one_of_all_ranks(tmp_path: Path) -> None:
    script = FEW.replace("from torch.utils.data import", "from torch_geometric.loader import").replace(
        ", TensorDataset", ""
    )
    script = script.replace("TensorDataset(data, data.sum(1, keepdim=True))", "graphs").replace("x, y in", "batch in")
    script = script.replace("TEST", "batch.x.shape[0] == 1 or batch.batch[-1] == 0").replace(
        "data = torch.randn(25, 4)", "graphs = torch.load('graphs.pt')"
    )
    lines = converted(tmp_path, script.replace("model(x), y", "model(batch), batch.y"))
    assert "if rd.loss.batch_count(batch.x.shape[0]) == 1 or rd.loss.batch_count(batch.num_graphs) == 1:" in lines


@pytest.mark.parametrize("test", ["x[0, 0] == 1", "x.size(1) < 2", "len(x) == 1 or y[0] > 2", "x.shape == 1"])
def test_another_test_of_the_batch_is_refused(tmp_path: Path, test: str) -> None:
    assert conversion(tmp_path, FEW.replace("TEST", test)).refusals


def test_a_batch_that_may_be_a_tuple_is_not_counted(tmp_path: Path) -> None:
    script = FEW.replace("for x, y in loader:\n", "for batch in loader:\n    x, y = batch\n")
    assert conversion(tmp_path, script.replace("TEST", "len(batch) == 1")).refusals
