"""Settings of one file that is not read are told from each other by their keys."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import converted

SCRIPT = """\
import json
import tomllib

import torch
import torch.nn.functional as F
import yaml
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset


def read(name):
    with open(name) as file:
        return yaml.safe_load(file)


def make_loader(settings):
    size = settings["batch_size"]
    return DataLoader(TensorDataset(torch.rand(64, 3), torch.rand(64, 3)), size, shuffle=True)


config = READ
most, shown = config["most"], config["shown"]
loader = make_loader(config)
model = nn.Linear(3, 3)
optimizer = optim.SGD(model.parameters(), lr=config["rate"])
for i, (x, y) in enumerate(loader):
    out = model(x)
    loss = F.mse_loss(out, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("step", i, most, "first", shown, "samples", i * SIZE)
    table = torch.zeros(shown)
"""
READS = ["read('a.yaml')", "json.load(open('a.json'))", "tomllib.loads('a')", "torch.load('a.pt')", "yaml.load('a')"]


@pytest.mark.parametrize("read", READS)
def test_another_key_is_another_setting(read: str, tmp_path: Path) -> None:
    found = converted(tmp_path, SCRIPT.replace("READ", read).replace("SIZE", "1"))
    assert 'print("step", i, most, "first", shown, "samples", i * 1)' in found
    assert "table = torch.zeros(shown)" in found


@pytest.mark.parametrize("read", READS)
def test_the_same_key_is_the_same_setting(read: str, tmp_path: Path) -> None:
    text = (
        SCRIPT.replace("READ", read)
        .replace("SIZE", "size")
        .replace("loader = make", 'size = config["batch_size"]\nloader = make')
    )
    found = converted(tmp_path, text)
    assert 'print("step", i, most, "first", shown, "samples", i * rd.loss.global_batch(size))' in found


THROUGH_CALLS = """\
import json

import torch
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset


def with_defaults(settings):
    return {"rate": 0.1, **settings}


def batches(data, settings):
    return DataLoader(data, settings["batch"], shuffle=True, drop_last=True)


class Noise:
    def loss(self, model, x, step, settings):
        t = torch.tensor([step] * settings["batch"])
        return (model(x * t[:, None]) - x).pow(2).mean()


def run(loader, settings):
    model, noise = nn.Linear(3, 3), Noise()
    optimizer = optim.SGD(model.parameters(), lr=settings["rate"])
    for step, (x,) in enumerate(loader):
        optimizer.zero_grad()
        noise.loss(model, x, step, settings).backward()
        optimizer.step()


def main():
    with open("settings.json") as file:
        settings = json.load(file)
    SET
    run(batches(TensorDataset(torch.rand(64, 3)), settings), settings)


main()
"""


@pytest.mark.parametrize("statement", ["pass", "settings = with_defaults(settings)", "settings['name'] = 'run'"])
def test_settings_are_followed_through_calls(statement: str, tmp_path: Path) -> None:
    found = converted(tmp_path, THROUGH_CALLS.replace("SET\n", statement + "\n"))
    assert 't = torch.tensor([step] * rd.data.own_batch_size(settings["batch"]))' in found
