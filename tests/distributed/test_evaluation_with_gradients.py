"""Evaluations that need gradients, split over ranks that have different numbers of batches, on real ranks."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import retrofit.distributed as rd

CRITERION = nn.CrossEntropyLoss(ignore_index=2)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh())
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        return self.head(self.features(x))


def pgd(model, criterion, x, y):
    """Three steps of projected gradient descent, in an evaluation without gradients."""
    moved = x.clone()
    for _ in range(3):
        with torch.enable_grad():
            moved = moved.detach().requires_grad_()
            (slope,) = torch.autograd.grad(criterion(model(moved), y), moved)
        moved = moved + 0.05 * slope.sign()
    return moved.detach()


def fgsm(model, criterion, x, y):
    """One step by backward(), which leaves gradients in the model as well."""
    with torch.enable_grad():
        moved = x.clone().requires_grad_()
        criterion(model(moved), y).backward()
    return x + 0.1 * moved.grad.sign()


def penalty(model, criterion, x, y):
    with torch.inference_mode(False), torch.enable_grad():
        moved = x.clone().requires_grad_()
        (slope,) = torch.autograd.grad(model(moved).square().sum(), moved, create_graph=True)
        slope.norm(dim=1).sub(1).square().mean().backward()
    return x * (1 + slope.norm(dim=1, keepdim=True).detach())


def centers(model, criterion, x, y):
    """A trained tensor outside the model takes part."""
    with torch.enable_grad():
        moved = x.clone().requires_grad_()
        (model(moved).square() * model.shift).sum().backward()
    return x + moved.grad


def half_training(model, criterion, x, y):
    """BatchNorm uses the batch, in a model that is in evaluation mode otherwise."""
    model.features[1].train()
    model.features[1].momentum = 0.0  # running statistics would depend on which batches a rank has had
    with torch.enable_grad():
        moved = x.clone().requires_grad_()
        (slope,) = torch.autograd.grad(criterion(model(moved), y), moved)
    model.features[1].eval()
    return x + slope


ATTACKS = [pgd, fgsm, penalty, centers, half_training]


def evaluated(attack, num_batches, is_loader):
    """Train two steps, evaluate, train on: return the figures and the weights."""
    torch.manual_seed(0)
    model = rd.distribute_model(Net())
    model.shift = rd.model.distribute_parameter(torch.ones(3, requires_grad=True))
    criterion = rd.loss.distribute_criterion(CRITERION)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(3 * num_batches, 4, generator=torch.Generator().manual_seed(1))
    data = TensorDataset(x, torch.arange(len(x)) % 3)
    loader = DataLoader(data, 3) if is_loader else [(x[i : i + 3], torch.arange(3)) for i in range(0, len(x), 3)]

    def train():
        for step in range(2):
            batch = torch.randn(8, 4, generator=torch.Generator().manual_seed(step))
            own = batch[rd.get_rank() * 4 : rd.get_rank() * 4 + 4] if rd.process_group.is_distributed() else batch
            optimizer.zero_grad()
            model(own).square().mean().backward()
            optimizer.step()

    train()
    model.eval()
    total = torch.zeros(2)
    with torch.no_grad():
        for x, y in rd.share_batches(loader):
            output = model(attack(model, criterion, x, y))
            total += torch.tensor([criterion(output, y), (output.argmax(1) == y).sum()])
    total = rd.sum_over_ranks(total)
    model.train()
    if attack is half_training:
        rd.model.broadcast_buffers(model)
        return total, []
    train()
    return total, [parameter.detach().clone() for parameter in model.parameters()]


def all_evaluations():
    return [
        evaluated(attack, num_batches, is_loader)
        for attack in ATTACKS
        for num_batches, is_loader in ((3, True), (1, True), (3, False))
    ]


@pytest.mark.parametrize("world_size", [2, 3])
def test_an_evaluation_with_gradients_equals_that_of_one_process(ranks, world_size):
    if world_size == 3:  # the batch of the training does not divide
        return ranks(3).run(only_totals, timeout_s=60.0) and None
    expected = all_evaluations()
    for found in ranks(world_size).run(all_evaluations, timeout_s=60.0):
        attacks = [attack for attack in ATTACKS for _ in range(3)]
        for attack, (total, weights), (expected_total, expected_weights) in zip(attacks, found, expected):
            torch.testing.assert_close(total, expected_total, rtol=1e-4, atol=1e-4, msg=attack.__name__)
            for weight, wanted in zip(weights, expected_weights):
                torch.testing.assert_close(weight, wanted, rtol=0, atol=1e-5)


def only_totals():
    model = rd.distribute_model(Net()).eval()
    with torch.no_grad():
        for x, y in rd.share_batches([(torch.randn(3, 4), torch.arange(3))] * 4):
            pgd(model, rd.loss.distribute_criterion(CRITERION), x, y)
    return rd.get_rank()


def after_a_break():
    """A loop that is left early, or by an error, is over: a training step after it is that of all ranks."""
    model = rd.distribute_model(nn.Linear(4, 3))
    loader = DataLoader(torch.randn(12, 4), 2)
    for _ in rd.share_batches(loader):
        break
    try:
        for _ in rd.share_batches(loader):
            raise ValueError
    except ValueError:
        pass
    next(iter(rd.share_batches(loader)))
    held = iter(rd.share_batches(loader))
    next(held)
    model(torch.full((2, 4), float(rd.get_rank()))).sum().backward()
    return model.weight.grad.clone()


def test_training_continues_over_all_ranks_afterwards(ranks):
    first, second = ranks(2).run(after_a_break)
    assert torch.equal(first, second) and first.unique().tolist() == [1.0]
