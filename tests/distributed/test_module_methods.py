"""Methods of torch's modules that a model's class has in its own way: they do what they do without the wrapper."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import retrofit.distributed as rd


class Parts(nn.Module):
    """A backbone, which comes with the model, and a head."""

    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
        self.head = nn.Linear(4, 1)

    def forward(self, x):
        return self.head(self.backbone(x)).square().mean()


class TrainsHead(Parts):
    def parameters(self, recurse=True):
        return self.head.parameters()


class ListsHead(Parts):
    def parameters(self):
        return list(self.head.parameters())


class NamesHead(Parts):
    def named_parameters(self, *args, **kwargs):
        return ((name, part) for name, part in super().named_parameters(*args, **kwargs) if name.startswith("head"))


class FreezesNorm(Parts):
    def train(self, mode=True):
        super().train(mode)
        self.backbone.eval()
        return self


class TrainWithoutArgument(Parts):
    def train(self):
        self.training = True
        self.head.train()

    def eval(self):
        self.training = False
        self.backbone.eval()
        self.head.eval()
        self.backbone[0].weight.requires_grad_(False)


class MovesMore(Parts):
    def __init__(self):
        super().__init__()
        self.shift = torch.zeros(1, dtype=torch.float32)

    def double(self):
        self.shift = self.shift.double()
        return super().double()

    def zero_grad(self, set_to_none=False):
        self.head.zero_grad(set_to_none=False)

    def forward(self, x):
        return super().forward(x + self.shift)


KINDS = [TrainsHead, ListsHead, NamesHead, FreezesNorm, TrainWithoutArgument, MovesMore]


def train(kind):
    """Return what a training leaves of the model, and which of its parts are in training mode after each switch."""
    torch.manual_seed(0)
    model = rd.distribute_model(kind(), sync_batchnorm=True)
    model = model.double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    batch = torch.randn(12, 3, dtype=torch.float64)[rd.get_rank() :: rd.get_world_size()]
    modes = []
    for _ in range(6):
        model.train()
        modes.append([part.training for part in rd.model.unwrap_model(model).modules()])
        optimizer.zero_grad()
        model.zero_grad()
        model(batch).backward()
        optimizer.step()
        model.eval()
        modes.append([part.training for part in rd.model.unwrap_model(model).modules()])
    gradients = [p.grad is not None for p in nn.Module.parameters(rd.model.unwrap_model(model))]
    return {name: value.tolist() for name, value in model.state_dict().items()}, modes, gradients


@pytest.mark.parametrize("kind", KINDS)
def test_the_methods_of_the_model_are_used(ranks, kind):
    state, modes, gradients = train(kind)
    for of_rank, of_modes, of_gradients in ranks(2).run(train, kind):
        assert of_modes == modes and of_gradients == gradients
        for name, value in state.items():
            assert torch.allclose(torch.tensor(of_rank[name]), torch.tensor(value), rtol=1e-10), name


def kept_wrapper(kind):
    model = rd.distribute_model(kind())
    return all(moved is model for moved in (model.to("cpu"), model.double(), model.eval(), model.requires_grad_(True)))


@pytest.mark.parametrize("kind", [Parts, FreezesNorm, MovesMore])
def test_a_method_that_returns_the_model_returns_the_wrapper(ranks, kind):
    assert ranks(2).run(kept_wrapper, kind) == [True, True]


class Holder(nn.Module):
    """A trainer that is a module itself, by whose `to` the model is moved."""

    def __init__(self, model):
        super().__init__()
        self.model = model


def moved_after_wrapping(holds, options):
    """Return what 30 steps leave of a model that is given another type when it is wrapped and has its optimizer."""
    torch.manual_seed(0)
    model = rd.distribute_model(Parts(), sync_batchnorm=True, **options)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    Holder(model).double() if holds else model.double()
    batch = torch.randn(12, 3, dtype=torch.float64)[rd.get_rank() :: rd.get_world_size()]
    for _ in range(30):
        optimizer.zero_grad()
        model(batch).backward()
        optimizer.step()
    looks = [model._gradient_sync.is_looking] if rd.get_world_size() > 1 else []
    return {name: value.tolist() for name, value in model.state_dict().items()}, looks


@pytest.mark.parametrize("options", [{}, {"find_unused_parameters": True}])
@pytest.mark.parametrize("holds", [True, False])
def test_a_model_that_is_moved_after_it_was_wrapped_is_synchronised(ranks, holds, options):
    expected, _ = moved_after_wrapping(holds, options)
    for state, looks in ranks(2).run(moved_after_wrapping, holds, options):
        assert looks == [False], "DDP reduces its gradients again"
        for name, value in expected.items():
            assert torch.allclose(torch.tensor(state[name]), torch.tensor(value), rtol=1e-10), name
