"""Parts of a batch, and loaders, that a loop goes through in a list of the source: no samples, no single loader."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import conversion, converted

HEAD = """\
import itertools

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence
from torch.utils.data import DataLoader, TensorDataset

words = torch.randint(0, 5, (22, 7))
loaders = [DataLoader(TensorDataset(words, words.flip(0)), 4) for _ in range(2)]
loader = loaders[0]
model = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 5))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def masked(out, y):
    mask = (y != 0).float()
    return (F.cross_entropy(out.transpose(1, 2), y, reduction="none") * mask).sum() / mask.sum()


count = 0
"""
LOOP = """\
for x, y in {}:
    {}
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(count)
"""
CE = "F.cross_entropy(model(part).transpose(1, 2), part, ignore_index=0)"
GLOBAL = "rd.loss.distribute_criterion(F.cross_entropy)("


@pytest.mark.parametrize(
    "loss",
    [
        f"loss = sum({CE} for part in (x, y))",
        f"losses = [{CE} for part in [x, y]]\n    loss = sum(losses) / len(losses)",
        f"loss = 0\n    for part in (x, y):\n        loss += {CE}",
        f"pairs = {{'x': x, 'y': y}}\n    loss = sum({CE} for part in pairs.values())",
        f"loss = sum({CE} for _, part in enumerate((x, y)))",
        f"loss = sum({CE} for part, _ in zip((x, y), (1, 2)))",
    ],
)
def test_a_mean_over_words_of_each_part_is_over_those_of_all_ranks(tmp_path: Path, loss: str) -> None:
    assert sum(GLOBAL in line for line in converted(tmp_path, HEAD + LOOP.format("loader", loss))) == 1


def test_a_count_in_a_function_for_each_part_is_of_all_ranks(tmp_path: Path) -> None:
    loss = "loss = torch.stack([masked(model(part), part) for part in (x, y)]).mean()"
    lines = converted(tmp_path, HEAD + LOOP.format("loader", loss))
    assert any("rd.loss.rank_share(rd.loss.batch_count(mask.sum()))" in line for line in lines)


def test_a_mean_of_one_sample_after_the_other_is_its_own(tmp_path: Path) -> None:
    loss = "loss = sum(F.cross_entropy(model(a), b, ignore_index=0) for a, b in zip(x, y)) / len(x)"
    assert not any(GLOBAL in line for line in converted(tmp_path, HEAD + LOOP.format("loader", loss)))


@pytest.mark.parametrize("values", ["F.relu(x.float())", "nn.functional.one_hot(x)"])
def test_rows_of_what_a_function_of_torch_gives_are_counted_on_all_ranks(tmp_path: Path, values: str) -> None:
    step = f"values = {values}\n    count += len(values)\n    loss = model(x).pow(2).mean()"
    assert any(
        "count += rd.reduce_total(len(values))" in line
        for line in converted(tmp_path, HEAD + LOOP.format("loader", step))
    )


def test_a_count_of_packed_words_is_listed(tmp_path: Path) -> None:
    packed = "pack_padded_sequence(x, (x != 0).sum(1).clamp(min=1), batch_first=True, enforce_sorted=False)"
    step = f"values = {packed}.data\n    count += len(values)\n    loss = model(x).pow(2).mean()"
    listed = conversion(tmp_path, HEAD + LOOP.format("loader", step)).listed
    assert [finding.message for finding in listed] == ["rank 0's share: count, is printed"]


def test_a_generator_over_several_loaders_is_refused(tmp_path: Path) -> None:
    drawn = "(batch for each in loaders for batch in each)"
    assert conversion(tmp_path, HEAD + LOOP.format(drawn, "loss = model(x).pow(2).mean()")).refusals


@pytest.mark.parametrize(
    "drawn", ["itertools.chain(*loaders[:2])", "itertools.chain(*{0: loaders[0], 1: loaders[1]}.values())"]
)
def test_loaders_that_are_drawn_one_after_the_other_are_each_sharded(tmp_path: Path, drawn: str) -> None:
    lines = converted(tmp_path, HEAD + LOOP.format(drawn, "loss = model(x).pow(2).mean()"))
    made = "loaders = [rd.distribute_loader(DataLoader(TensorDataset(words, words.flip(0)), 4)) for _ in range(2)]"
    of_both = "{0: rd.distribute_loader(loaders[0]), 1: rd.distribute_loader(loaders[1])}"
    assert made in lines or any(of_both in line for line in lines)


def test_a_list_of_batches_that_is_shuffled_in_its_place_is_sharded_in_the_loop(tmp_path: Path) -> None:
    batches = "import random\n\nbatches = [words[i : i + 4] for i in range(0, 20, 4)]\nrandom.shuffle(batches)\n"
    step = "    loss = model(x).pow(2).mean()\n    optimizer.zero_grad()\n    loss.backward()\n    optimizer.step()\n"
    lines = converted(tmp_path, f"{HEAD}{batches}for x in batches:\n{step}")
    assert "for x in rd.distribute_loader(batches):" in lines
