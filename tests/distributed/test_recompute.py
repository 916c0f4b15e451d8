"""Layers whose activations are recomputed compute the same."""

from __future__ import annotations

import copy

import torch
from torch import nn

from retrofit.distributed.strategies.recompute import recompute_layers


def kept_by(model, image):
    """Train one step and return how many numbers the forward kept for backward."""
    sizes = []

    def remember(tensor):
        sizes.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(remember, lambda tensor: tensor):
        loss = model(image).square().mean()
    loss.backward()
    return sum(sizes)


def test_gradients_and_statistics_are_the_same_with_less_memory():
    torch.manual_seed(0)
    block = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 3, 3))
    plain = nn.Sequential(block, nn.Flatten(), nn.Linear(3 * 4 * 4, 2))
    model = copy.deepcopy(plain)
    names = list(model.state_dict())
    recompute_layers([model[0][0], model[0]])
    image = torch.randn(4, 3, 8, 8)
    kept = [kept_by(each, image) for each in (plain, model)]
    assert list(model.state_dict()) == names
    for (name, one), other in zip(plain.state_dict().items(), model.state_dict().values()):
        assert torch.equal(one, other), f"{name}: statistics were counted twice"
    for one, other in zip(plain.parameters(), model.parameters()):
        assert torch.equal(one.grad, other.grad)
    assert kept[1] < kept[0]


def test_evaluation_is_unchanged():
    model = nn.Sequential(nn.Linear(3, 3))
    recompute_layers([model[0]])
    x = torch.randn(2, 3, requires_grad=True)
    model.eval()(x).sum().backward()
    assert x.grad is not None and model[0].weight.grad is not None
