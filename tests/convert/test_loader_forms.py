"""A loader is the same loader behind enumerate, a progress bar and a name for these, in training and in evaluation."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import conversion, converted

SCRIPT = """\
from itertools import count, islice

import torch
from rich.progress import track
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset
from tqdm import tqdm

torch.manual_seed(0)
data = TensorDataset(torch.randn(16, 3))
train_loader, other, val_loader = DataLoader(data, 4, shuffle=True), DataLoader(data, 4), DataLoader(data, 4)
model = nn.Linear(3, 1)
optimizer = optim.SGD(model.parameters(), lr=0.1)


def evaluate(loader):
    model.eval()
    total = 0.0
    with torch.no_grad():
        {evaluation}:
            total += model(x).sum().item()
    return total


for epoch in range(2):
    {training}:
        {first}
        optimizer.zero_grad()
        model(x).pow(2).mean().backward()
        optimizer.step()
    print(evaluate(val_loader))
"""
# LOADER is the loader's name, {indent} for the white space in front of the line.
SAME = [
    "for (x,) in LOADER",
    "for i, (x,) in enumerate(LOADER)",
    "for (x,) in tqdm(LOADER, total=len(LOADER))",
    "for i, (x,) in tqdm(enumerate(LOADER))",
    "for i, (x,) in tqdm(enumerate(LOADER, 1), total=len(LOADER), desc='x')",
    "for i, (x,) in enumerate(tqdm(iterable=LOADER))",
    "for (x,) in track(LOADER, 'x')",
    "for i, (x,) in track(enumerate(LOADER), total=len(LOADER))",
    "bar = tqdm(enumerate(LOADER), total=len(LOADER)); bar.set_description('x')\n{indent}for i, (x,) in bar",
    "numbered = enumerate(LOADER)\n{indent}for i, (x,) in numbered",
    "for i, (x,) in enumerate(iter(LOADER))",
    "for (x,) in tqdm(list(LOADER))",
]
# What takes another number of batches, or pairs them with something.
PAIRED = [
    "for (x,), (u,) in zip(LOADER, other)",
    "for i, ((x,), (u,)) in enumerate(zip(LOADER, other))",
    "for i, (x,) in zip(range(2), LOADER)",
    "for i, (x,) in zip(count(), LOADER)",
    "for (x,), name in zip(LOADER, 'abcd')",
    "for (x,) in islice(LOADER, 2)",
    "for (x,) in tqdm(islice(LOADER, 2), total=2)",
    "bar = tqdm(LOADER); steps = len(bar)\n{indent}for (x,) in bar",
    "batches = list(LOADER)\n{indent}for (x,) in batches",
]


def script(evaluation: str = SAME[0], training: str = SAME[0], first: str = "") -> str:
    evaluation = evaluation.replace("LOADER", "loader").replace("{indent}", " " * 8)
    training = training.replace("LOADER", "train_loader").replace("{indent}", " " * 4)
    return SCRIPT.format(evaluation=evaluation, training=training, first=first or "pass")


@pytest.mark.parametrize("drawn", SAME)
def test_an_evaluation_is_sharded(tmp_path: Path, drawn: str) -> None:
    lines = converted(tmp_path, script(evaluation=drawn))
    assert "total = rd.sum_over_ranks(total)" in lines
    assert sum(line.count("rd.share_batches(loader)") for line in lines) == 1
    assert not any("len(rd" in line for line in lines)


@pytest.mark.parametrize("drawn", PAIRED)
def test_batches_that_are_counted_or_paired_are_not_sharded(tmp_path: Path, drawn: str) -> None:
    assert not any("rd.share_batches" in line for line in converted(tmp_path, script(evaluation=drawn)))


@pytest.mark.parametrize("drawn", [drawn for drawn in (*SAME, *PAIRED) if " i, " in drawn])
def test_the_number_of_a_batch_is_its_number_over_all_ranks(tmp_path: Path, drawn: str) -> None:
    text = script(evaluation=drawn).replace("total += model(x)", "total += (i + 1) * model(x)")
    assert not any("rd.share_batches" in line for line in converted(tmp_path, text))


@pytest.mark.parametrize("drawn", [*SAME, *PAIRED])
def test_a_training_loader_is_sharded_by_samples(tmp_path: Path, drawn: str) -> None:
    lines = converted(tmp_path, script(training=drawn))
    assert "train_loader = rd.distribute_loader(train_loader)" in lines


@pytest.mark.parametrize("drawn", [drawn for drawn in (*SAME, *PAIRED) if "tqdm(" in drawn or "track(" in drawn])
def test_one_process_shows_its_progress(tmp_path: Path, drawn: str) -> None:
    lines = converted(tmp_path, script(training=drawn))
    assert sum("disable=not rd.is_main_process()" in line for line in lines) == 1


@pytest.mark.parametrize("drawn", [drawn for drawn in (*SAME, *PAIRED) if " i, " in drawn])
def test_a_step_skipped_by_its_number_is_skipped_by_all_ranks(tmp_path: Path, drawn: str) -> None:
    assert not conversion(tmp_path, script(training=drawn, first="if i == 2: continue")).refusals
    (refused,) = conversion(tmp_path, script(training=drawn, first="if x.sum() > 2: continue")).refusals
    assert "what is in the batch decides" in refused.refusal
