"""Functions that return what hands on a loader: each call that trains gets its share, and no other call."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import converted

SCRIPT = """\
import itertools

import torch
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset

wide = torch.rand(1) > 2
seen, held = TensorDataset(torch.randn(24, 4)), TensorDataset(torch.randn(8, 4))


def cycle(batches):
    while True:
        for batch in batches:
            yield batch


def stream(data):
    {returned}


def fit(flow, other):
    model = nn.Linear(4, 1)
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    for step in range(4):
        (x,) = next(flow)
        loss = model(x).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        print(model(next(other)[0]).mean())


{made}
fit(flow, other)
"""
MADE = "DataLoader(data, 4, shuffle=True)"
RETURNED = {
    "a generator": f"return cycle({MADE})",
    "a generator in a variable": f"batches = cycle({MADE})\n    return batches",
    "of itertools": f"return itertools.cycle({MADE})",
    "an expression": f"loader = {MADE}\n    return (batch for batch in loader)",
}
BRANCHES = """\
if wide:
    first, second = DataLoader(seen, 4), DataLoader(held, 4)
    flow, other = cycle(first), cycle(second)
else:
    flow, other = stream(seen), stream(held)
"""
PLACES = {
    "two calls": ("flow = stream(seen)\nother = stream(held)", ["flow = rd.distribute_loader(stream(seen))"]),
    "one call": (
        "flow = stream(seen)\nother = iter(DataLoader(held, 4))",
        ["rd.distribute_loader(DataLoader(data, 4, shuffle=True))", "loader = rd.distribute_loader(loader)"],
    ),
    "branches": (
        BRANCHES,
        ["first = rd.distribute_loader(first)", "flow, other = rd.distribute_loader(stream(seen)), stream(held)"],
    ),
}


@pytest.mark.parametrize("returned", RETURNED)
@pytest.mark.parametrize("place", PLACES)
def test_only_the_calls_that_train_are_sharded(tmp_path: Path, returned: str, place: str) -> None:
    made, expected = PLACES[place]
    lines = converted(tmp_path, SCRIPT.format(returned=RETURNED[returned], made=made))
    sharded = [line for line in lines if "distribute_loader(" in line]
    if place == "one call":
        assert len(sharded) == 1 and any(part in sharded[0] for part in expected)
    else:
        assert sharded == expected
