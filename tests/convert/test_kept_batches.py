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


EPISODES_OF_CLASSES = """\
import sys

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

SHOT, QUERY = 2, 4


class Classes(Dataset):
    def __init__(self):
        self.samples = torch.randn(9, SHOT + QUERY, 6)

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, number):
        return self.samples[number], number


class Episodes:
    def __len__(self):
        return 8

    def __iter__(self):
        for _ in range(8):
            yield torch.randperm(9)[:5]


class Relations(nn.Module):
    def __init__(self, way):
        super().__init__()
        self.way, self.query = way, -1
        self.features, self.relation = nn.Linear(6, 8), nn.Linear(16, 1)

    def scores(self, x):
        z = self.features(x.contiguous().view(self.way * (SHOT + self.query), -1)).tanh()
        z = z.view(self.way, SHOT + self.query, -1)
        centers = z[:, :SHOT].mean(1)
        query = z[:, SHOT:].contiguous().view(self.way * self.query, -1)
        left = centers.unsqueeze(0).repeat(len(query), 1, 1)
        right = query.unsqueeze(1).repeat(1, self.way, 1)
        return self.relation(torch.cat((left, right), 2).view(-1, 16)).view(-1, self.way)

    def forward(self, x):
        return self.features(x)

    def loss(self, x):
        y = torch.arange(self.way).repeat_interleave(self.query)
        return F.cross_entropy(self.scores(x), y)

    def run(self, loader, optimizer):
        total = 0
        for number, (x, _) in enumerate(loader):
            self.query, self.way = x.size(1) - SHOT, x.size(0)
            optimizer.zero_grad()
            loss = self.loss(x)
            loss.backward()
            optimizer.step()
            total = total + loss.item()
            print(f"{number} {total / (number + 1):.5f}")


class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 4)

    def forward(self, x):
        return self.layer(x)

    def run(self, loader, optimizer):
        for x, y in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(self(x), y)
            loss.backward()
            optimizer.step()
            print(f"{loss.item():.5f}")


torch.manual_seed(0)
if sys.argv[1:] == ["plain"]:
    loader = DataLoader(TensorDataset(torch.randn(30, 6), torch.arange(30) % 4), 6)
    model = Plain()
else:
    loader = DataLoader(Classes(), batch_sampler=Episodes())
    model = Relations(5)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    model.run(loader, optimizer)
"""


def test_episodes_of_classes_stay_whole(tmp_path: Path) -> None:
    assert "loader = rd.distribute_loader(loader, keep_batches=True)" in converted(tmp_path, EPISODES_OF_CLASSES)


BUCKETS = """\
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Sampler, TensorDataset


class Buckets(Sampler):
    def __init__(self, lengths):
        self.order = sorted(range(len(lengths)), key=lambda row: lengths[row])

    def __iter__(self):
        for start in range(0, len(self.order), 8):
            yield self.order[start : start + 8]

    def __len__(self):
        return len(self.order) // 8


class Attention(nn.Module):
    def __init__(self, heads=2):
        super().__init__()
        self.heads = heads
        self.embed, self.qkv, self.out = nn.Embedding(20, 8), nn.Linear(8, 24), nn.Linear(8, 4)

    def forward(self, x, mask):
        batch, length = x.shape
        q, k, v = self.qkv(self.embed(x)).chunk(3, dim=-1)
        q, k, v = (part.view(batch, length, self.heads, -1).transpose(1, 2) for part in (q, k, v))
        scores = q @ k.transpose(-2, -1) / 2
        scores = scores.masked_fill(~mask[:, None, None, :].expand(batch, 1, length, length), -1e9)
        z = (scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, length, -1)
        return self.out(z.mean(1))


torch.manual_seed(0)
lengths = torch.randint(2, 9, (40,))
data = TensorDataset(torch.randint(0, 20, (40, 8)), lengths, torch.randint(0, 4, (40,)))
loader = DataLoader(data, batch_sampler=Buckets(lengths.tolist()))
model = Attention()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, lengths, y in loader:
    x = x[:, : lengths.max()]
    mask = torch.arange(x.size(1)).unsqueeze(0).repeat(x.size(0), 1) < lengths.unsqueeze(1)
    loss = F.cross_entropy(model(x, mask), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def test_batches_of_similar_lengths_are_split(tmp_path: Path) -> None:
    assert "loader = rd.distribute_loader(loader)" in converted(tmp_path, BUCKETS)
