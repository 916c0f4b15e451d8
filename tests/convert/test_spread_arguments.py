"""Arguments that a call spreads over parameters, `train(*parts)` and `train(**parts)`, are followed one by one."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import conversion

from retrofit.training import read_project
from retrofit.training.steps.counted.step_limits import step_limits

SCRIPT = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def prepare():
    data = TensorDataset(torch.randn(32, 6), torch.randint(0, 3, (32,)))
    loader = DataLoader(data, batch_size=8, shuffle=True)
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return RETURNED


def train(model, loader, optimizer, epochs):
    for epoch in range(epochs):
        for x, y in loader:
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(epoch, loss.item())


class Trainer:
    def __init__(self, model, loader, optimizer):
        self.parts = model, loader, optimizer
        self.model, self.loader, self.optimizer = model, loader, optimizer

    def run(self, epochs):
        train(*self.parts, epochs)


CALL
"""
TUPLE = "model, loader, optimizer"
CALLS = {
    "a tuple": (TUPLE, "train(*prepare(), 3)"),
    "a tuple by name": (TUPLE, "parts = prepare()\ntrain(*parts, epochs=3)"),
    "after another": (TUPLE, "model, *rest = prepare()\ntrain(model, *rest, epochs=3)"),
    "a list": (f"[{TUPLE}]", "train(*prepare(), 3)"),
    "a dict": ('{"model": model, "loader": loader, "optimizer": optimizer}', "train(**prepare(), epochs=3)"),
    "dict()": ("dict(model=model, loader=loader, optimizer=optimizer)", "train(**prepare(), epochs=3)"),
    "an object": (TUPLE, "Trainer(*prepare()).run(3)"),
}


@pytest.mark.parametrize("name", CALLS)
def test_what_is_made_elsewhere_is_distributed_where_it_is_made(name: str, tmp_path: Path) -> None:
    returned, call = CALLS[name]
    result = conversion(tmp_path, SCRIPT.replace("RETURNED", returned).replace("CALL", call))
    assert not result.refusals
    text = next(file.text for file in result.files if file.path.name == "train.py")
    assert "    loader = rd.distribute_loader(loader)\n" in text
    assert text.count("rd.distribute_loader(") == 1
    assert text.count("rd.distribute_model(") == 1
    assert "lr=rd.scaled_lr(0.1)" in text
    assert "rd.loss.reduce_last_loss(loss).item()" in text
    assert not step_limits(read_project(tmp_path / "train.py")), "the training counts epochs"
