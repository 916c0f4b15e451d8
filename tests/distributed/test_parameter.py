"""A trained tensor beside the models: all ranks together change it as one process does."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import retrofit.distributed as rd


def train(number):
    """Return a tensor after each step of an epoch of `number` samples; two optimizers are given it."""
    torch.manual_seed(0)
    rd.options._values.update(batch="global")
    loader = rd.distribute_loader(DataLoader(TensorDataset(torch.randn(number, 3, dtype=torch.float64)), 6))
    scale = torch.full((3,), 1.0 + rd.get_rank(), dtype=torch.float64, requires_grad=True)
    optimizers = [torch.optim.SGD([rd.model.distribute_parameter(scale)], lr=0.1) for _ in range(2)]
    steps = []
    for (x,) in loader:
        optimizers[0].zero_grad()
        for part in (x * scale, x + scale):  # a step of two micro batches
            part.square().mean().backward()
        optimizers[0].step()
        steps.append(scale.tolist())
    rd.options._values.clear()
    return steps


@pytest.mark.parametrize("number", [12, 14, 17])
@pytest.mark.parametrize("world_size", [2, 3])
def test_a_tensor_is_changed_as_by_one_process(ranks, world_size, number):
    alone = train(number)
    assert len(alone) > 1
    for steps in ranks(world_size).run(train, number):
        for step, expected in zip(steps, alone):
            assert step == pytest.approx(expected, rel=1e-12)


def saved_and_frozen(path):
    scale = rd.model.distribute_parameter(torch.nn.Parameter(torch.ones(2)))
    frozen = torch.zeros(2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.save({"scale": scale}, path / f"{rd.get_rank()}.pt")
    loaded = torch.load(path / f"{rd.get_rank()}.pt", weights_only=True)["scale"]
    return loaded.tolist(), rd.model.distribute_parameter(frozen) is frozen


def test_a_tensor_can_be_saved_and_a_frozen_one_is_unchanged(ranks, tmp_path):
    assert ranks(2).run(saved_and_frozen, tmp_path) == [([1.0, 1.0], True)] * 2


def drawn_again():
    scale = rd.model.distribute_parameter(torch.nn.Parameter(torch.ones(2)))
    torch.nn.init.constant_(scale, float(rd.get_rank() + 3))
    return rd.model.distribute_parameter(scale).tolist(), len(scale._backward_hooks)


def test_values_that_it_was_given_since_the_last_call_are_those_of_rank_0(ranks):
    assert ranks(2).run(drawn_again) == [([3.0, 3.0], 1)] * 2


def test_one_process_gets_the_same_tensor():
    scale = torch.ones(2, requires_grad=True)
    assert rd.model.distribute_parameter(scale) is scale and not scale._backward_hooks


class OverGraph(nn.Module):
    """A model that keeps its graph as a sparse buffer and as a sparse parameter, which is not trained."""

    def __init__(self):
        super().__init__()
        graph = torch.eye(6).to_sparse()
        self.register_buffer("graph", graph)
        self.weights = nn.Parameter(graph, requires_grad=False)
        self.nodes = nn.Embedding(6, 3)

    def forward(self, rows):
        return torch.sparse.mm(self.weights, torch.sparse.mm(self.graph, self.nodes.weight))[rows]


def trained_over_graph():
    torch.manual_seed(0)
    model = rd.distribute_model(OverGraph())
    model(torch.tensor([rd.get_rank()])).sum().backward()
    rd.model.broadcast_buffers(model)
    return model.nodes.weight.grad[:, 0].tolist()


def test_sparse_tensors_that_are_not_trained_stay_as_each_rank_has_made_them(ranks):
    assert ranks(2).run(trained_over_graph) == [[0.5, 0.5, 0, 0, 0, 0]] * 2
