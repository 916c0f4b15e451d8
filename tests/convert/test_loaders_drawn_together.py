"""Batches of several loaders in one step: iterators in containers, tuples of zip that a loop goes through."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import conversion, converted

SCRIPT = """\
from itertools import cycle

import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


def build(n):
    return DataLoader(TensorDataset(torch.randn(n, 4), torch.randn(n, 1)), batch_size=6, drop_last=True)


W = torch.tensor([0.3, 0.7])
a, b = build(40), build(30)
{loaders}
model = nn.Linear(4, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(3):
    {loop}
        opt.zero_grad()
        loss.backward()
        opt.step()
{after}
"""
IN_DICT = "loaders = {k: build(n) for k, n in {'x': 40, 'y': 30}.items()}"
IN_LIST = "loaders = [build(n) for n in (40, 30)]"
IN_DICT_SPLIT = "loaders = {k: rd.distribute_loader(build(n)) for k, n in {'x': 40, 'y': 30}.items()}"
IN_LIST_SPLIT = "loaders = [rd.distribute_loader(build(n)) for n in (40, 30)]"
BY_KEY = "for k in loaders:\n            x, y = next(iters[k])\n            loss = loss + F.mse_loss(model(x), y)"
STEP = "for _ in range(5):\n        loss = 0\n        "
ZIPPED = "for x, y in batches:\n            loss = loss + F.mse_loss(model(x), y)"
FORMS = [
    (IN_DICT, "iters = {k: iter(l) for k, l in loaders.items()}", BY_KEY, IN_DICT_SPLIT),
    (
        IN_DICT,
        "iters = {k: iter(cycle(l)) if k == 'y' else iter(l) for k, l in loaders.items()}",
        BY_KEY,
        IN_DICT_SPLIT,
    ),
    (IN_DICT, "iters = {k: iter(loaders[k]) for k in loaders}", BY_KEY, IN_DICT_SPLIT),
    (IN_DICT, "iters = {}\n    for k in loaders:\n        iters[k] = iter(loaders[k])", BY_KEY, IN_DICT_SPLIT),
    (IN_LIST, "iters = [iter(l) for l in loaders]", BY_KEY.replace("k in loaders", "k in range(2)"), IN_LIST_SPLIT),
    (IN_LIST, "iters = [cycle(l) for l in loaders]", BY_KEY.replace("k in loaders", "k in range(2)"), IN_LIST_SPLIT),
    (
        IN_LIST,
        "iters = [iter(l) for l in loaders]",
        "for it in iters:\n            x, y = next(it)\n            loss = loss + F.mse_loss(model(x), y)",
        IN_LIST_SPLIT,
    ),
]


@pytest.mark.parametrize(("loaders", "iterators", "draws", "expected"), FORMS)
def test_loaders_of_iterators_in_containers_are_split(
    tmp_path: Path, loaders: str, iterators: str, draws: str, expected: str
) -> None:
    script = SCRIPT.format(loaders=loaders, loop=f"{iterators}\n    {STEP}{draws}", after="")
    assert expected in converted(tmp_path, script)


def test_a_loader_that_an_evaluation_has_too_is_split_where_it_is_drawn(tmp_path: Path) -> None:
    after = "with torch.no_grad():\n    print(sum(model(x).sum().item() for x, y in loaders['x']))"
    loop = f"iters = {{k: iter(l) for k, l in loaders.items()}}\n    {STEP}{BY_KEY}"
    plan = conversion(tmp_path, SCRIPT.format(loaders=IN_DICT, loop=loop, after=after))
    assert plan.refusals or IN_DICT_SPLIT not in "".join(file.text for file in plan.files)


def test_an_evaluation_in_a_loop_of_a_step_stays_one(tmp_path: Path) -> None:
    """What is drawn there is in no loss."""
    inner = "with torch.no_grad():\n            for _ in range(2):\n                print(model(next(held)[0]).sum())"
    loop = f"for x, y in a:\n        loss = F.mse_loss(model(x), y)\n        held = iter(b)\n        {inner}"
    lines = converted(tmp_path, SCRIPT.format(loaders="", loop=loop, after=""))
    assert "a = rd.distribute_loader(a)" in lines and "b = rd.distribute_loader(b)" not in lines


@pytest.mark.parametrize(
    "loop",
    [
        f"for batches in zip(a, b):\n        loss = 0\n        {ZIPPED}",
        f"for i, batches in enumerate(zip(a, cycle(b))):\n        loss = 0\n        {ZIPPED}",
        "for batches in zip(a, b):\n        loss = sum(F.mse_loss(model(x), y) for x, y in batches)",
    ],
)
def test_a_sum_over_several_loaders_is_not_one_over_samples(tmp_path: Path, loop: str) -> None:
    plan = conversion(tmp_path, SCRIPT.format(loaders="", loop=loop, after=""))
    assert not plan.refusals
    assert "sum_loss" not in "".join(file.text for file in plan.files)


def test_all_loaders_of_a_dict_can_be_drawn_from_together(tmp_path: Path) -> None:
    loop = f"for batches in zip(*loaders.values()):\n        loss = 0\n        {ZIPPED}"
    lines = converted(tmp_path, SCRIPT.format(loaders=IN_DICT, loop=loop, after=""))
    assert IN_DICT_SPLIT in lines and not any("sum_loss" in line for line in lines)


def test_a_weighted_mean_of_each_of_several_loaders_counts_on_all_ranks(tmp_path: Path) -> None:
    terms = "F.cross_entropy(torch.cat([model(x), -model(x)], 1), (y[:, 0] > 0).long(), weight=W)"
    loop = (
        f"for batches in zip(a, b):\n        loss = 0\n        for x, y in batches:\n            loss = loss + {terms}"
    )
    lines = converted(tmp_path, SCRIPT.format(loaders="", loop=loop, after=""))
    assert any("rd.loss.distribute_criterion(F.cross_entropy)" in line for line in lines)


CYCLED = (
    "batches = cycle(b)\n    for x, y in {first}:\n        u, v = next(batches)\n        loss = F.mse_loss(model(x), y)"
)
UNEVEN = "DataLoader(TensorDataset(torch.randn(40, 4), torch.randn(40, 1)), batch_size=6)"


def test_a_loader_that_is_repeated_from_memory_next_to_an_uneven_one_is_listed(tmp_path: Path) -> None:
    loop = CYCLED.format(first="c") + " + F.mse_loss(model(u), v)"
    listed = [
        f.help for f in conversion(tmp_path, SCRIPT.format(loaders=f"c = {UNEVEN}", loop=loop, after="")).findings
    ]
    assert any("drop_last=True" in text for text in listed)


def test_nothing_is_listed_where_all_batches_have_their_full_size(tmp_path: Path) -> None:
    loop = CYCLED.format(first="a") + " + F.mse_loss(model(u), v)"
    listed = [f.help for f in conversion(tmp_path, SCRIPT.format(loaders="", loop=loop, after="")).findings]
    assert not any("drop_last=True" in text for text in listed)
