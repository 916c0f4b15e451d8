"""Models in dicts, lists and containers of torch.nn: each is wrapped in its place, and trains as in one process."""

from __future__ import annotations

from types import SimpleNamespace
from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import retrofit.distributed as rd


class Pair(NamedTuple):
    coder: nn.Module
    scorer: nn.Module


KINDS = {
    "dict": lambda a, b: {"coder": a, "scorer": b, "step": 0},
    "list": lambda a, b: [a, b],
    "named tuple": Pair,
    "module dict": lambda a, b: nn.ModuleDict({"coder": a, "scorer": b}),
    "module list": lambda a, b: nn.ModuleList([a, b]),
    "namespace": lambda a, b: SimpleNamespace(coder=a, scorer=b),
    "dict in a dict": lambda a, b: {"nets": {"coder": a}, "scorer": [b]},
}


def entries(kind, held):
    if kind == "dict in a dict":
        return held["nets"]["coder"], held["scorer"][0]
    if kind in ("list", "module list", "named tuple"):
        return held[0], held[1]
    return (held.coder, held.scorer) if kind == "namespace" else (held["coder"], held["scorer"])


def train(kind):
    torch.manual_seed(0)
    rd.options._values.update(batch="global")
    data = TensorDataset(torch.randn(26, 3).double())
    loader = rd.distribute_loader(DataLoader(data, 6))
    coder = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)).double()
    held = KINDS[kind](coder, nn.Linear(3, 1).double())
    held = rd.model.distribute_models(held)
    coder, scorer = entries(kind, held)
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in (coder, scorer)]
    for _ in range(3):
        for (x,) in loader:
            for sign, optimizer in zip((1, -1), optimizers):
                loss = F.mse_loss(coder(x), x) + F.softplus(sign * scorer(coder(x))).mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
    rd.options._values.clear()
    return [torch.cat([p.detach().flatten() for p in model.parameters()]).tolist() for model in (coder, scorer)]


@pytest.mark.parametrize("kind", KINDS)
def test_the_training_is_that_of_one_process(ranks, kind):
    alone = train(kind)
    for trained in ranks(2).run(train, kind):
        for values, expected in zip(trained, alone):
            assert values == pytest.approx(expected, rel=1e-9, abs=1e-9)


def state_of_a_whole():
    whole = nn.ModuleDict({"a": nn.Linear(2, 2), "b": nn.Sequential(nn.Linear(2, 2))})
    rd.model.distribute_models(whole)
    state = {name: torch.full_like(value, 3) for name, value in whole.state_dict().items()}
    whole.load_state_dict(state)
    return sorted(state), {float(p.detach().mean()) for p in whole.parameters()}


def test_a_module_loads_the_names_without_the_wrapper_of_its_parts(ranks):
    names = ["a.bias", "a.weight", "b.0.bias", "b.0.weight"]
    assert ranks(2).run(state_of_a_whole) == [(names, {3.0})] * 2


def one_model_in_two_places():
    model = nn.Linear(2, 2)
    held = rd.model.distribute_models({"a": model, "b": [model], "none": None})
    return held["a"] is held["b"][0], held["none"] is None


def test_a_model_in_two_places_is_wrapped_once(ranks):
    assert ranks(2).run(one_model_in_two_places) == [(True, True)] * 2


def too_early():
    with pytest.raises(ValueError, match="no model is in this dict yet"):
        rd.model.distribute_models({})


def test_an_empty_container_is_an_error(ranks):
    ranks(2).run(too_early)
    too_early()
