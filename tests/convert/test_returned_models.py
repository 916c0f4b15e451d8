"""Models that the function which trains them returns: each of several is wrapped, and none taken for another one."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import converted

SCRIPT = """\
import copy

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def steps(model, optimizer):
    for x, y in loader:
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def inner(model, optimizer):
    steps(model, optimizer)
    return model


def fit(model, optimizer):
    {body}


loader = DataLoader(TensorDataset(torch.randn(32, 4), torch.randn(32, 1)), batch_size=8)
a, b = nn.Linear(4, 1), nn.Linear(4, 1)
{calls}
"""
OF_A, OF_B = (f"{name}, torch.optim.SGD({name}.parameters(), lr=0.1)" for name in "ab")
BODIES = {
    "model": ["steps(model, optimizer)", "return model"],
    "pair": ["steps(model, optimizer)", "return model, 1"],
    "moved": ["model = model.to('cpu')", "steps(model, optimizer)", "return model"],
    "inner": ["model = inner(model, optimizer)", "return model"],
    "copy": ["best = copy.deepcopy(model)", "steps(model, optimizer)", "return best"],
    "dict": ["steps(model, optimizer)", "return dict(model=model)"],
    "display": ["steps(model, optimizer)", "return {'model': model}"],
}
CALLS = {
    "both": [f"a = fit({OF_A})", f"b = fit({OF_B})"],
    "first": [f"a = fit({OF_A})", f"fit({OF_B})"],
    "other names": [f"c = fit({OF_A})", f"d = fit({OF_B})"],
    "entries": [f"out = fit({OF_A})", "a = out['model']", f"out = fit({OF_B})", "b = out['model']"],
}


@pytest.mark.parametrize(
    ("body", "calls"),
    [
        *((body, "both") for body in ("model", "moved", "inner", "copy")),
        *((body, "first") for body in ("model", "moved", "pair")),
        ("model", "other names"),
        ("dict", "entries"),
        ("display", "entries"),
    ],
)
def test_each_of_several_models_is_wrapped(tmp_path: Path, body: str, calls: str) -> None:
    lines = converted(tmp_path, SCRIPT.format(body="\n    ".join(BODIES[body]), calls="\n".join(CALLS[calls])))
    made = lines.index("a, b = nn.Linear(4, 1), nn.Linear(4, 1)")
    trained = next(number for number, line in enumerate(lines) if "fit(b, " in line)
    wrapped = set(lines[made:trained])
    assert {"a = rd.distribute_model(a)", "b = rd.distribute_model(b)"} <= wrapped


def test_a_call_that_trains_twice_wraps_once(tmp_path: Path) -> None:
    twice = f"a = fit(fit({OF_A}), torch.optim.SGD(a.parameters(), lr=0.1))"
    lines = converted(tmp_path, SCRIPT.format(body="\n    ".join(BODIES["model"]), calls=twice))
    assert lines.count("a = rd.distribute_model(a)") == 1
