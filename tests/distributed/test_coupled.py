"""Losses that couple the samples of a batch: gradients and figures of all ranks are those of one process."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import retrofit.distributed as rd


def dice(out, target):
    """Dice over the batch for each class, with a term of the samples' own and a factor of the whole batch."""
    both, union = (
        rd.loss.batch_sum((out * target).sum(0)),
        rd.loss.batch_sum(out.sum(0)) + rd.loss.batch_sum(target.sum(0)),
    )
    score = (2 * both + 1) / (union + 1)
    return (1 - score).pow(0.75).mean() * rd.loss.batch_mean(target.mean()) + F.binary_cross_entropy(out, target)


def root(out, target):
    return torch.sqrt(rd.loss.batch_mean(F.mse_loss(out, target))) + rd.loss.batch_mean(out.mean()).exp()


def ranked(out, target, power=1):
    """A loss of errors in their order, which cannot be taken apart."""
    errors, _ = torch.sort((out - target).abs().flatten(), descending=True)
    return (errors * torch.arange(1.0, len(errors) + 1).double().rsqrt()).sum() + (out @ out.T).logsumexp(1).mean()


def uneven(out, target):
    """The mean of the ranks' losses where each is another function of the sum: times a mean of its own samples."""
    return rd.loss.batch_sum(out.sum()).square() * 0.01 + out.square().mean()


def centered(out, target):
    """Rows from which the mean of all samples is taken, and a matrix product over the samples."""
    both = rd.loss.batch_sum(out.T @ target)
    return (out - rd.loss.batch_mean(out.mean(0))).square().mean() + both.square().mean() * 0.01


LOSSES = {
    "centered": centered,
    "dice": dice,
    "root": root,
    "ranked": rd.loss.whole_batch_loss(ranked),
    "uneven": uneven,
}


def train(number, kind):
    """Return the loss that is shown, that of an evaluation, and all parameters after each step of an epoch."""
    torch.manual_seed(0)
    rd.options._values.update(batch="global")
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3), nn.Sigmoid()).double()
    data = TensorDataset(torch.rand(number, 3).double(), (torch.rand(number, 3) > 0.6).double())
    loader = rd.distribute_loader(DataLoader(data, 6))
    model = rd.distribute_model(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    steps = []
    for x, y in loader:
        optimizer.zero_grad()
        loss = LOSSES[kind](model(x), y)
        loss.backward()
        optimizer.step()
        weights = torch.cat([p.detach().flatten() for p in model.parameters()]).tolist()
        steps.append([rd.reduce_loss(loss).item(), *weights])
    with torch.no_grad():  # of an evaluation each rank has other batches, or none
        steps.append([LOSSES[kind](model(x), y).item() for x, y in [data[:5]] if rd.get_rank() == 0])
    rd.options._values.clear()
    return steps


@pytest.mark.parametrize("kind", LOSSES)
@pytest.mark.parametrize("number", [12, 13, 17])
@pytest.mark.parametrize("world_size", [2, 3])
def test_the_training_is_that_of_one_process(ranks, world_size, number, kind):
    alone = train(number, kind)
    first = None
    for steps in ranks(world_size).run(train, number, kind):
        first = first or steps
        assert len(steps) == len(alone) and steps[:-1] == [pytest.approx(step, rel=1e-9) for step in first[:-1]]
        for step, expected in zip(steps[:-1], alone[:-1]):
            assert step == pytest.approx(expected, rel=1e-9, abs=1e-12)
    assert first is not None and first[-1] == pytest.approx(alone[-1], rel=1e-9)


def gradients():
    """Return the averaged gradient of the ranks' losses, and that of their mean by finite differences."""
    torch.manual_seed(rd.get_rank())
    own = torch.rand(3, dtype=torch.float64, requires_grad=True)

    def loss(values):
        total = rd.loss.batch_sum(values.square().sum())
        return total.log() * (1 + rd.get_rank()) + values.sum() / total

    loss(own).backward()
    numeric = []
    for rank in range(rd.get_world_size()):
        for index in range(3):
            pair = []
            for shift in (1e-6, -1e-6):
                moved = own.detach().clone().requires_grad_()
                if rank == rd.get_rank():
                    moved.data[index] += shift
                pair.append(rd.collectives.reduce_tensor_sum(loss(moved)).item())
            if rank == rd.get_rank():
                numeric.append((pair[0] - pair[1]) / 2e-6)
    return own.grad.tolist(), numeric


@pytest.mark.parametrize("world_size", [2, 3])
def test_gradients_are_those_of_the_combined_loss_of_all_ranks(ranks, world_size):
    for by_graph, numeric in ranks(world_size).run(gradients):
        assert by_graph == pytest.approx(numeric, rel=1e-6)
