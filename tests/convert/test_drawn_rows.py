"""Trainings without a DataLoader on rows of tables and shuffled lists: split alike on all ranks, or refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import conversion, converted

START = """\
import random

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from torch import nn
from tqdm import tqdm

torch.manual_seed(0)
X, Y = torch.rand(100, 4), torch.rand(100)
rows = list(range(100))
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
BATCH = 8
"""
STEP = """\
loss = F.mse_loss(model(x).squeeze(1), y)
optimizer.zero_grad()
loss.backward()
optimizer.step()
"""
SIZE = "rd.data.batch_of_ranks(BATCH)"


def training(over: str, line: str, before: str = "pass") -> str:
    """Return a loop over epochs, `before` in it, and a loop over batches in that."""
    step = "".join(f"        {part}\n" for part in [*line.split("\n"), *STEP.splitlines()])
    first = "".join(f"    {part}\n" for part in before.split("\n"))
    return f"for epoch in range(3):\n{first}    {over}:\n{step}"


def reasons(folder: Path, text: str) -> list[str]:
    return [finding.refusal for finding in conversion(folder, START + text).refusals]


@pytest.mark.parametrize(
    "made", ["pd.DataFrame(X.numpy())", "pd.read_csv('rows.csv')", "pd.read_csv('rows.csv').dropna()"]
)
def test_rows_of_a_table_have_one_order_on_all_ranks(tmp_path: Path, made: str) -> None:
    line = "part = table.iloc[i:i + BATCH]\nx, y = torch.tensor(part[:4].values), torch.tensor(part[4].values)"
    shuffled = "table = table.sample(frac=1).reset_index(drop=True)"
    text = f"table = {made}\n" + training("for i in range(0, len(table), BATCH)", line, shuffled)
    lines = converted(tmp_path, START + text)
    assert "table = rd.data.draw_together(table.sample, frac=1).reset_index(drop=True)" in lines
    assert f"part = rd.data.own_part(table.iloc[i:i + {SIZE}])" in lines


def test_rows_that_are_sampled_from_a_table_are_split(tmp_path: Path) -> None:
    line = "part = table.sample(n=BATCH)\nx, y = torch.tensor(part[:4].values), torch.tensor(part[4].values)"
    text = "table = pd.read_csv('rows.csv')\n" + training("for step in range(10)", line)
    assert f"part = rd.data.own_draw(table.sample(n={SIZE}))" in converted(tmp_path, START + text)


def test_a_list_that_is_shuffled_in_place_is_cut_into_batches(tmp_path: Path) -> None:
    text = training("for i in range(0, 100, 8)", "k = rows[i:i + 8]\nx, y = X[k], Y[k]", "random.shuffle(rows)")
    lines = converted(tmp_path, START + text)
    assert "rd.data.draw_together(random.shuffle, rows)" in lines
    assert "k = rd.data.own_part(rows[i:i + rd.data.batch_of_ranks(8)])" in lines


def test_the_indices_of_a_fold_are_cut_into_batches(tmp_path: Path) -> None:
    text = training(
        "for i in range(0, len(fold), 8)", "k = fold[i:i + 8]\nx, y = X[k], Y[k]", "np.random.shuffle(fold)"
    )
    text = "".join(f"    {line}\n" for line in text.splitlines())
    text = f"from sklearn.model_selection import KFold\n\nfor fold, rest in KFold(5, shuffle=True).split(X):\n{text}"
    assert "k = rd.data.own_part(fold[i:i + rd.data.batch_of_ranks(8)])" in converted(tmp_path, START + text)


def test_a_progress_bar_in_a_variable_counts_batches(tmp_path: Path) -> None:
    before = "order = np.random.permutation(100)\nbar = tqdm(range(100 // BATCH))"
    text = training("for i in bar", "k = order[i * BATCH:(i + 1) * BATCH]\nx, y = X[k], Y[k]", before)
    lines = converted(tmp_path, START + text)
    assert any(f"tqdm(range(100 // {SIZE})" in line for line in lines)
    assert f"k = rd.data.own_part(order[i * {SIZE}:(i + 1) * {SIZE}])" in lines


def test_a_start_that_is_set_to_the_end_moves_on(tmp_path: Path) -> None:
    line = "end = min(at + BATCH, 100)\nx, y = X[k[at:end]], Y[k[at:end]]\nat = end"
    before = "k = torch.randperm(100)\nat = 0"
    lines = converted(tmp_path, START + training("while at < 100", line, before))
    assert f"end = min(at + {SIZE}, 100)" in lines
    assert "x, y = X[rd.data.own_part(k[at:end])], Y[rd.data.own_part(k[at:end])]" in lines


DRAWN_BY_SAMPLE = """\
class Sampler:
    def __init__(self, rows, batch_size):
        self.rows, self.batch_size = rows, batch_size
        self.rng = np.random.RandomState(0)

    def one(self):
        row = self.rows[self.rng.randint(len(self.rows))]
        return row, {drawn}

    def next_batch(self):
        return zip(*[self.one() for _ in range(self.batch_size)])


sampler = Sampler([np.arange(4) for _ in range(50)], BATCH)
"""


@pytest.mark.parametrize(
    "drawn", ["self.rng.randint(0, 20, len(row))", "np.random.choice(20, n_negative)", "torch.rand(len(row))"]
)
def test_numbers_that_each_sample_needs_are_refused(tmp_path: Path, drawn: str) -> None:
    line = "x, y = sampler.next_batch()\nx, y = torch.tensor(x), torch.tensor(y)[:, 0]"
    text = "n_negative = 3\n" + DRAWN_BY_SAMPLE.format(drawn=drawn) + training("for step in range(10)", line)
    words = "which dimension of torch.rand(len(row))" if "torch" in drawn else "again for each sample"
    assert any(words in reason for reason in reasons(tmp_path, text)), reasons(tmp_path, text)


SHARED = """\
def run(indices, optimizer=None):
    total = 0.0
    for i in tqdm(range(len(indices) // BATCH)):
        k = indices[i * BATCH : (i + 1) * BATCH]
        loss = F.mse_loss(model(X[k]).squeeze(1), Y[k])
        if optimizer is not None:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        total += loss.item()
    return total


for epoch in range(3):
    random.shuffle(rows)
    run(rows, optimizer=optimizer)
"""


def test_an_evaluation_in_the_loop_of_the_training_is_split_as_well(tmp_path: Path) -> None:
    lines = converted(tmp_path, START + SHARED + "    print(run(list(range(20))))\n")
    assert "rd.data.draw_together(random.shuffle, rows)" in lines
    assert f"k = rd.data.own_part(indices[i * {SIZE} : (i + 1) * {SIZE}])" in lines
    assert "total += rd.reduce_loss(loss).item()" in lines
