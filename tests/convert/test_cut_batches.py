"""Lists of batches without a DataLoader: each rank takes whole ones in turn, of an order that all ranks draw alike."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import conversion, converted

START = """\
import random

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import BatchSampler, RandomSampler, SubsetRandomSampler

torch.manual_seed(0)
X, Y = torch.rand(100, 4), torch.rand(100)
rows = list(range(100))
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def batches(order, size):
    return [order[i : i + size] for i in range(0, len(order), size)]


def fit(x, y):
    loss = F.mse_loss(model(x).squeeze(1), y)
    loss.backward()


for epoch in range(3):
"""
FIT = "        optimizer.zero_grad()\n        fit(X[k], Y[k])\n        optimizer.step()\n"


@pytest.mark.parametrize(
    ("before", "over", "drawn"),
    [
        ("order = np.random.permutation(100)", "np.array_split(order, 12)", "np.random.permutation, 100"),
        ("order = torch.randperm(100)", "torch.chunk(order, 12)", "torch.randperm, 100"),
        ("order = torch.randperm(100)", "order.chunk(12)", "torch.randperm, 100"),
        ("random.shuffle(rows)", "batches(rows, 8)", "random.shuffle, rows"),
        ("random.shuffle(rows)", "[rows[i : i + 8] for i in range(0, 100, 8)]", "random.shuffle, rows"),
        ("pass", "BatchSampler(SubsetRandomSampler(range(100)), 8, False)", ""),
        ("pass", "BatchSampler(RandomSampler(X), 8, drop_last=True)", ""),
    ],
)
def test_batches_are_taken_in_turn(tmp_path: Path, before: str, over: str, drawn: str) -> None:
    lines = converted(tmp_path, f"{START}    {before}\n    for k in {over}:\n{FIT}")
    assert f"for k in rd.distribute_loader({over}):" in lines
    assert not drawn or any(f"rd.data.draw_together({drawn})" in line for line in lines)


def test_a_list_of_batches_in_a_variable_is_divided_where_it_is_made(tmp_path: Path) -> None:
    lines = converted(
        tmp_path, f"{START}    parts = np.array_split(rows, 12)\n    for n, k in enumerate(parts):\n{FIT}"
    )
    assert "parts = rd.distribute_loader(parts)" in lines


def test_inputs_and_targets_in_equal_parts_stay_together(tmp_path: Path) -> None:
    text = f"{START}    order = torch.randperm(100)\n    for x, y in zip(X[order].chunk(9), Y[order].chunk(9)):\n"
    lines = converted(tmp_path, text + FIT.replace("X[k], Y[k]", "x, y"))
    assert "for x, y in rd.distribute_loader(zip(X[order].chunk(9), Y[order].chunk(9))):" in lines
    assert "order = rd.data.draw_together(torch.randperm, 100)" in lines


SHARED = """\
def run(indices, optimizer=None):
    for k in np.array_split(indices, 12):
        loss = F.mse_loss(model(X[k]).squeeze(1), Y[k])
        if optimizer is not None:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


"""


def test_a_loop_over_batches_that_also_evaluates_is_split(tmp_path: Path) -> None:
    text = START.replace("for epoch", SHARED + "for epoch") + "    run(rows, optimizer)\n    run(rows[:20])\n"
    assert "for k in rd.distribute_loader(np.array_split(indices, 12)):" in converted(tmp_path, text)


PLAYED = """\
    states = []
    for turn in range(100):
        states.append(model(X[turn]))
    played = torch.stack(states)
"""


@pytest.mark.parametrize(
    ("before", "step"),
    [
        # one step for all parts: these are no batches
        ("    optimizer.zero_grad()\n", "        fit(X[k], Y[k])\n    optimizer.step()\n"),
        # what a policy has played
        (PLAYED, FIT.replace("X[k]", "played[k]")),
        ("    state, reward, done, info = environment.step(0)\n", FIT),
    ],
)
def test_parts_of_one_batch_or_of_what_a_policy_plays_are_refused(tmp_path: Path, before: str, step: str) -> None:
    text = f"{START}{before}    for k in np.array_split(rows, 12):\n{step}"
    text = text.replace("import random\n", "import random\n\nfrom simulation import environment\n", 1)
    assert any("np.array_split" in finding.refusal for finding in conversion(tmp_path, text).refusals)


LIST_OF_ROWS = """\
import random

import torch
from torch import nn

torch.manual_seed(0)
random.seed(0)
batch_size = 4


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(9, 3), nn.Linear(3, 9)

    def forward(self, ids, labels):
        return nn.functional.cross_entropy(self.head(self.embed(ids)).flatten(0, 1), labels.flatten()), None


model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
samples = []
start = 0
while start < 200:
    samples.append([random.randrange(9) for _ in range(5)])
    start += 5
random.shuffle(samples)
for step in range(len(samples) // batch_size):
    batch = samples[step * batch_size : (step + 1) * batch_size]
    rows = []
    for ids in batch:
        {put}
    rows = torch.tensor(rows)
    loss, _ = model.forward(ids=rows, labels=rows)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.parametrize("put", ["rows.append(ids)", "rows.append([int(x) for x in ids])", "rows += [list(ids)]"])
def test_rows_of_a_slice_that_are_put_into_a_list_one_by_one(tmp_path: Path, put: str) -> None:
    lines = converted(tmp_path, LIST_OF_ROWS.format(put=put))
    size = "rd.data.batch_of_ranks(batch_size)"
    assert f"batch = rd.data.own_part(samples[step * {size} : (step + 1) * {size}])" in lines


@pytest.mark.parametrize("counter", ["range(len(parts))", "np.arange(len(parts))", "itertools.count()"])
def test_batches_next_to_a_counter(tmp_path: Path, counter: str) -> None:
    loop = "    parts = np.split(np.arange(96), 12)\n    parts[-1] = parts[-1][:4]\n"
    loop += f"    for k, n in zip(parts, {counter}):\n"
    lines = converted(tmp_path, f"import itertools\n{START}{loop}{FIT}")
    assert "parts = rd.distribute_loader(parts)" in lines
    assert f"for k, n in zip(parts, {counter}):" in lines


def test_a_variable_that_an_evaluation_sets_again_is_divided_for_the_training(tmp_path: Path) -> None:
    evaluation = (
        "    parts = batches(rows, 16)\n    with torch.no_grad():\n        for k in parts:\n            model(X[k])\n"
    )
    lines = converted(tmp_path, f"{START}    parts = batches(rows, 8)\n    for k in parts:\n{FIT}{evaluation}")
    given = [line for line in lines if "parts = " in line]
    assert given == ["parts = batches(rows, 8)", "parts = rd.distribute_loader(parts)", "parts = batches(rows, 16)"]
