"""Names that a function declares global, and containers of the module that it fills, are followed like any other."""

from __future__ import annotations

from pathlib import Path

import pytest

from retrofit.convert.plan import plan_conversion
from retrofit.training import read_project

IMPORTS = """\
import argparse
import functools
import os

import torch
import torch.nn as nn
from torch.optim.lr_scheduler import OneCycleLR as Cycle
from torch.utils.data import DataLoader, TensorDataset
"""
LOOP = """\
    for epoch in range(2):
        for x, y in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
"""


def converted(text: str, tmp_path: Path) -> str:
    script = tmp_path / "train.py"
    script.write_text(IMPORTS + text, encoding="utf-8")
    conversion = plan_conversion(read_project(script))
    assert not conversion.refusals
    return conversion.files[0].text


def test_objects_that_a_function_makes_global(tmp_path: Path) -> None:
    text = converted(
        """\
def build():
    global loader, model, optimizer
    data, size = TensorDataset(torch.randn(32, 4), torch.randn(32, 1)), 8
    made = DataLoader(data, batch_size=size, shuffle=True)
    loader = made
    net = nn.Linear(4, 1)
    model = net
    rate = 0.1
    optimizer = torch.optim.SGD(net.parameters(), lr=rate)


def train():
"""
        + LOOP
        + "build()\ntrain()\n",
        tmp_path,
    )
    assert text.count("rd.distribute_loader(") == 1
    assert text.count("rd.distribute_model(") == 1
    assert "lr=rd.scaled_lr(rate)" in text


def test_a_table_of_the_module_that_a_function_fills(tmp_path: Path) -> None:
    text = converted(
        """\
loaders, options = {}, {}


def build():
    data = TensorDataset(torch.randn(32, 4), torch.randn(32, 1))
    options["batch_size"] = 8
    loaders["train"] = DataLoader(data, shuffle=True, **options)


def train(model, optimizer):
"""
        + LOOP.replace("in loader", 'in loaders["train"]')
        + "build()\nmodel = nn.Linear(4, 1)\ntrain(model, torch.optim.SGD(model.parameters(), lr=0.1))\n",
        tmp_path,
    )
    assert "loaders['train'] = rd.distribute_loader(loaders['train'])" in text


@pytest.mark.parametrize(
    "setting",
    [
        "for group in optimizer.param_groups:\n            group['lr'] = RATE",
        "groups = optimizer.param_groups\n        for n, group in enumerate(groups):\n            group['lr'] = RATE",
        "set_rate(optimizer.param_groups, RATE)",
        "[g.update() for g in ()]\n        first = optimizer.param_groups[0]\n        first['lr'] = RATE",
        "for o in [optimizer]:\n            for group in o.param_groups:\n                group['lr'] = RATE",
    ],
)
def test_rates_set_by_hand_through_other_names(setting: str, tmp_path: Path) -> None:
    text = converted(
        """\
def set_rate(groups, value):
    for group in groups:
        group["lr"] = value


def train():
    data = TensorDataset(torch.randn(32, 4), torch.randn(32, 1))
    loader = DataLoader(data, batch_size=8, shuffle=True)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""
        + LOOP
        + f"        {setting.replace('RATE', '0.1 / (epoch + 1)')}\n"
        + "train()\n",
        tmp_path,
    )
    assert "rd.scaled_lr(0.1 / (epoch + 1))" in text or "rd.scaled_lr(value)" in text


def test_a_schedule_under_another_name(tmp_path: Path) -> None:
    text = converted(
        """\
def train():
    data = TensorDataset(torch.randn(32, 4), torch.randn(32, 1))
    loader = DataLoader(data, batch_size=8, shuffle=True)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = Cycle(optimizer, max_lr=0.2, total_steps=8)
"""
        + LOOP
        + "            schedule.step()\ntrain()\n",
        tmp_path,
    )
    assert "max_lr=rd.scaled_lr(0.2)" in text


@pytest.mark.parametrize(
    "building",
    [
        "loader = new_loader(data, batch_size=size, shuffle=True)",
        "loader = new_loader(data, size, True)",
        "options = dict(batch_size=size, shuffle=True)\n    loader = DataLoader(data, **options)",
        "options = {'shuffle': True}\n    options['batch_size'] = size\n    loader = DataLoader(data, **options)",
        "given = (data, size)\n    loader = DataLoader(*given, shuffle=True)",
        "loader = functools.partial(DataLoader, shuffle=True)(data, size)",
    ],
)
def test_batch_sizes_that_are_handed_on(building: str, tmp_path: Path) -> None:
    text = converted(
        f"""\
def new_loader(*args, **kwargs):
    return DataLoader(*args, **kwargs)


def train(size):
    data = TensorDataset(torch.randn(30, 2, 2), torch.randn(30, 1))
    {building}
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""
        + LOOP.replace("model(x)", "model(x.reshape(size, -1))")
        + "parser = argparse.ArgumentParser()\nparser.add_argument('--size', type=int, default=8)\n"
        + "train(parser.parse_args().size)\n",
        tmp_path,
    )
    assert "x.reshape(rd.data.own_batch_size(size), -1)" in text


TWO_WAYS = """\
class Meters:
    def log_every(self, iterable):
        for batch in iterable:
            yield batch


def train_one_epoch(model, optimizer, data, scaler=None):
    for x, y in Meters().log_every(data):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        if scaler is not None:
            scaler.scale(loss).backward()
            scaler.step(optimizer)
        else:
            loss.backward()
            optimizer.step()


train_loader = DataLoader(TensorDataset(torch.randn(32, 4), torch.randn(32, 1)), batch_size=8, shuffle=True)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.cuda.amp.GradScaler() if torch.cuda.is_available() else None
for epoch in range(2):
    train_one_epoch(model, optimizer, train_loader, scaler=scaler)
"""


def test_a_call_that_takes_one_of_two_ways_to_a_backward_call_trains(tmp_path: Path) -> None:
    assert "train_loader = rd.distribute_loader(train_loader)" in converted(TWO_WAYS, tmp_path)
