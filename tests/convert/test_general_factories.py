"""Functions that make what a configuration names of any module: getattr(module, name)(*args, **options)."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import converted

MODELS = """\
from torch import nn


class Net(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.layer = nn.Linear(4, width)

    def forward(self, x):
        return self.layer(x)
"""
SCRIPT = """\
import json

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

import models


def build(module, settings, *args):
    return getattr(module, settings["name"])(*args, **settings["options"])


class Config:
    def __init__(self, values):
        self.values = values

    def make(self, part, module, *args, **more):
        options = dict(self.values[part]["options"])
        options.update(more)
        return getattr(module, self.values[part]["name"])(*args, **options)


with open("config.json") as file:
    values = json.load(file)
config = Config(values)
loader = DataLoader(TensorDataset(torch.randn(16, 4), torch.randint(0, 3, (16,))), batch_size=4)
model = MODEL
weights = filter(lambda p: p.requires_grad, model.parameters())
optimizer = OPTIMIZER
for x, y in loader:
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
MODEL = ["models.Net()", 'config.make("model", models)', 'build(models, values["model"])']
OPTIMIZER = ['config.make("optimizer", torch.optim, weights)', 'build(torch.optim, values["optimizer"], weights)']


@pytest.mark.parametrize("model", MODEL)
@pytest.mark.parametrize("optimizer", OPTIMIZER)
def test_the_model_whose_weights_are_handed_on_is_wrapped(tmp_path: Path, model: str, optimizer: str) -> None:
    script = SCRIPT.replace("MODEL", model).replace("OPTIMIZER", optimizer)
    lines = converted(tmp_path, script, models=MODELS)
    assert "model = rd.distribute_model(model)" in lines
    assert "rd.learning_rate.scale_optimizer(" in "".join(lines)  # in the function, where it makes nothing else
