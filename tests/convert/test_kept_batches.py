"""Batches that a script composes for a step that needs them whole: each rank takes whole ones, and gathers no rows."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import conversion, converted

SCRIPT = """\
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

WAY, SHOT, QUERY = 3, 2, 4


class Episodes:
    def __init__(self, labels, number):
        self.number = number
        self.rows = [np.flatnonzero(labels == c) for c in range(5)]

    def __len__(self):
        return self.number

    def __iter__(self):
        for _ in range(self.number):
            classes = np.random.permutation(5)[:WAY]
            yield np.stack([np.random.permutation(self.rows[c])[: SHOT + QUERY] for c in classes]).reshape(-1).tolist()


def distances(a, b):
    return ((a.unsqueeze(1) - b.unsqueeze(0)) ** 2).sum(2)


torch.manual_seed(0)
y = torch.arange(5).repeat(9)
data = TensorDataset(torch.randn(45, 6), y)
sampler = Episodes(y.numpy(), 10)
loader = LOADER
model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    for x, y in loader:
        STEP
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""
OWN = "DataLoader(data, batch_sampler=sampler)"
STEPS = {
    "rows by their place": """
        support, query = x[: WAY * SHOT], x[WAY * SHOT :]
        centers = model(support).reshape(WAY, SHOT, -1).mean(1)
        loss = F.cross_entropy(-distances(model(query), centers), torch.arange(WAY).repeat_interleave(QUERY))""",
    "outputs by their place": """
        z = model(x)
        centers = z[: WAY * SHOT].view(WAY, SHOT, -1).mean(dim=1)
        loss = F.cross_entropy(-torch.cdist(z[WAY * SHOT :], centers), torch.arange(WAY).repeat_interleave(QUERY))""",
    "split into two": """
        support, query = torch.split(model(x), [WAY * SHOT, WAY * QUERY])
        centers = support.view(WAY, SHOT, -1).mean(1)
        loss = F.cross_entropy(-torch.cdist(query, centers), torch.arange(WAY).repeat_interleave(QUERY))""",
    "an axis for the classes": """
        z = model(x).view(WAY, SHOT + QUERY, -1)
        centers, query = z[:, :SHOT].mean(1), z[:, SHOT:].reshape(WAY * QUERY, -1)
        loss = F.cross_entropy(-torch.cdist(query, centers), torch.arange(WAY).repeat_interleave(QUERY))""",
    "an axis of the inputs": """
        x = x.reshape(WAY, SHOT + QUERY, 6)
        centers = model(x[:, :SHOT].reshape(-1, 6)).view(WAY, SHOT, -1).mean(1)
        logits = model(x[:, SHOT:].reshape(-1, 6)) @ centers.t()
        loss = F.cross_entropy(logits, torch.arange(WAY).repeat_interleave(QUERY))""",
    "rows by their labels": """
        z, classes = model(x), torch.unique(y)
        places = [torch.nonzero(y == c).squeeze(1) for c in classes]
        centers = torch.stack([z[rows[:SHOT]].mean(0) for rows in places])
        query = torch.cat([z[rows[SHOT:]] for rows in places])
        loss = F.cross_entropy(-distances(query, centers), torch.arange(WAY).repeat_interleave(QUERY))""",
}


def script(step: str, loader: str = OWN) -> str:
    return SCRIPT.replace("STEP", step.strip()).replace("LOADER", loader)


@pytest.mark.parametrize("kind", STEPS)
def test_an_episode_stays_whole(tmp_path: Path, kind: str) -> None:
    lines = converted(tmp_path, script(STEPS[kind]))
    assert "loader = rd.distribute_loader(loader, keep_batches=True)" in lines
    assert not any("rd.loss." in line for line in lines)


@pytest.mark.parametrize("kind", STEPS)
def test_the_plan_says_that_batches_stay_whole(tmp_path: Path, kind: str) -> None:
    (finding,) = (each for each in conversion(tmp_path, script(STEPS[kind])).findings if each.code == "RF104")
    assert "each process takes whole ones in turn" in finding.message


@pytest.mark.parametrize("kind", STEPS)
def test_batches_of_single_samples_are_not_kept(tmp_path: Path, kind: str) -> None:
    result = conversion(tmp_path, script(STEPS[kind], "DataLoader(data, batch_size=18, shuffle=True)"))
    assert result.refusals or not any("keep_batches" in file.text for file in result.files)


PLAIN = {
    "a mean over the samples": "loss = F.cross_entropy(model(x), y % 4)",
    "a comparison that is gathered": "z = model(x); loss = F.cross_entropy(z @ z.t(), torch.arange(len(z)))",
    "a view by the number of samples": "loss = F.cross_entropy(model(x.view(len(x), -1)), y % 4)",
    "the last columns": "loss = F.cross_entropy(model(x)[:, -3:], y % 3)",
}


@pytest.mark.parametrize("kind", PLAIN)
def test_a_batch_whose_samples_have_no_places_is_split(tmp_path: Path, kind: str) -> None:
    assert "loader = rd.distribute_loader(loader)" in converted(tmp_path, script(PLAIN[kind]))


def test_batches_of_a_sampler_of_torch_are_not_kept(tmp_path: Path) -> None:
    sampler = "torch.utils.data.BatchSampler(torch.utils.data.RandomSampler(data), 18, True)"
    result = conversion(tmp_path, script(STEPS["rows by their labels"], f"DataLoader(data, batch_sampler={sampler})"))
    assert result.refusals
