"""A mean over the nodes of graphs, or over rows of samples put one after the other, is over those of all processes."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import conversion
from convert.training_runs import trains_as_one
from verify.projects.launch import Launcher

SCRIPT = """\
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn, optim
from torch_geometric.loader import DataLoader as GraphLoader
from torch_geometric.nn import GCNConv, global_mean_pool
from torch.utils.data import DataLoader
from data import Graphs


def join(samples):
    xs, ys = zip(*samples)
    return torch.cat(xs), torch.cat(ys, dim=0)


def join_arrays(samples):
    return tuple(torch.from_numpy(np.concatenate([s[k] for s in samples])) for k in (0, 1))


def stack(samples):
    xs, ys = zip(*samples)
    return torch.stack(xs), torch.stack(ys)


def beside(samples):
    xs, ys = zip(*samples)
    return torch.cat(xs, dim=1), torch.stack(ys)


class Join:
    def __call__(self, samples):
        return join(samples)


class Joined(DataLoader):
    def __init__(self, dataset, size):
        super().__init__(dataset, size, shuffle=True, collate_fn=join)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = GCNConv(3, 8), nn.Linear(8, 5)

    def forward(self, x, edges=None):
        return self.last(self.first(x, edges))


class Pooled(Net):
    def forward(self, x, edges, batch=None):
        return self.last(global_mean_pool(self.first(x, edges), batch))


loader = LOADER
criterion = CRITERION
model = MODEL
optimizer = optim.SGD(model.parameters(), lr=0.1)
for DATA in loader:
    optimizer.zero_grad()
    loss = LOSS
    loss.backward()
    optimizer.step()
"""
OF_GRAPHS, OF_ROWS = ("data", "model(data.x, data.edge_index), data.y"), ("x, y", "model(x), y")
GRAPHS = "GraphLoader(Graphs(), batch_size=4, shuffle=True)"
LOADERS = {
    "graphs": (GRAPHS, *OF_GRAPHS),
    "joined": ("DataLoader(Graphs(), 4, collate_fn=join)", *OF_ROWS),
    "joined arrays": ("DataLoader(Graphs(), 4, collate_fn=join_arrays)", *OF_ROWS),
    "joined by an object": ("DataLoader(Graphs(), 4, collate_fn=Join())", *OF_ROWS),
    "joined by a class of the project": ("Joined(Graphs(), 4)", *OF_ROWS),
    "joined in a lambda": ("DataLoader(Graphs(), 4, collate_fn=lambda samples: join(samples))", *OF_ROWS),
}
OTHERS = {
    "a row for each graph": (GRAPHS, "Pooled()", "data", "model(data.x, data.edge_index, data.batch), data.y"),
    "a row for each sample": ("DataLoader(Graphs(), 4, collate_fn=stack)", "Net()", *OF_ROWS),
    "no collate_fn": ("DataLoader(Graphs(), 4)", "Net()", *OF_ROWS),
    "one after the other": ("DataLoader(Graphs(), 4, collate_fn=beside)", "Net()", *OF_ROWS),
}
CRITERIA = ["nn.BCEWithLogitsLoss()", "nn.CrossEntropyLoss()", "nn.MSELoss()"]


def script(loader: str, model: str, data: str, given: str, criterion: str, loss: str = "criterion(GIVEN)") -> str:
    text = SCRIPT.replace("LOADER", loader).replace("MODEL", model).replace("DATA", data)
    return text.replace("LOSS", loss.replace("GIVEN", given)).replace("CRITERION", criterion)


@pytest.mark.parametrize("criterion", CRITERIA)
@pytest.mark.parametrize("name", LOADERS)
def test_the_rows_of_all_processes_are_counted(name: str, criterion: str, tmp_path: Path) -> None:
    loader, data, given = LOADERS[name]
    result = conversion(tmp_path, script(loader, "Net()", data, given, criterion))
    (text,) = (file.text for file in result.files if file.path.name == "train.py")
    assert f"criterion = rd.loss.distribute_criterion({criterion})" in text and not result.refusals


@pytest.mark.parametrize("name", LOADERS)
def test_a_mean_without_a_criterion_counts_rows_too(name: str, tmp_path: Path) -> None:
    loader, data, given = LOADERS[name]
    out, target = given.rsplit(", ", 1)
    text = script(loader, "Net()", data, "", "None", f"({out} - {target}).abs().mean()")
    (finding,) = (f for f in conversion(tmp_path, text).findings if f.code == "RF302")
    assert "rd.loss.chosen_mean(" in "".join(edit.text for edit in finding.edits)


@pytest.mark.parametrize("name", OTHERS)
def test_a_mean_over_samples_stays_as_it_is(name: str, tmp_path: Path) -> None:
    result = conversion(tmp_path, script(*OTHERS[name], "nn.MSELoss()"))
    assert not [f for f in result.findings if f.code == "RF302"]


RUN = """\
import torch
from torch.utils.data import DataLoader


def join(batch):
    points, labels = zip(*batch)
    return torch.cat(points), torch.cat(labels)


torch.manual_seed(0)
clouds = [(torch.randn(n, 3).double(), torch.randn(n, 1).double()) for n in range(5, 33)]
loader = DataLoader(clouds, batch_size=6, collate_fn=join)
model = torch.nn.Linear(3, 1).double()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    for x, y in loader:
        errors = (model(x) - y) ** 2
        loss = LOSS
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print("shown", loss.item())
print("shown", model.weight.sum().item())
"""
MEANS = ["errors.mean()", "1 + torch.mean(errors)", "errors.mean() / 2 + 0.1 * errors.pow(2).sum() / len(errors)"]


@pytest.mark.parametrize("loss", MEANS[:2])
def test_the_mean_over_rows_is_taken_by_a_function_of_the_runtime(loss: str, tmp_path: Path) -> None:
    result = conversion(tmp_path, RUN.replace("LOSS", loss))
    assert "rd.loss.chosen_mean(errors)" in result.files[0].text
    assert not result.refusals and not result.listed


@pytest.mark.parametrize("loss", MEANS)
def test_the_mean_over_rows_is_that_of_one_process(loss: str, tmp_path: Path, launcher: Launcher) -> None:
    trains_as_one(tmp_path, RUN.replace("LOSS", loss), launcher, world_sizes=(1, 2))
