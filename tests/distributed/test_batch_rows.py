"""Rows of the whole batch, gathered with gradients: the training on them is that of one process."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler, TensorDataset

import retrofit.distributed as rd


class Embedding(nn.Module):
    """A layer, and a scale that is a parameter of the loss."""

    def __init__(self):
        super().__init__()
        self.layer, self.scale = nn.Linear(3, 4), nn.Parameter(torch.tensor(0.7))

    def forward(self, x):
        return torch.tanh(self.layer(x))


def views_of(model, x, y):
    """SimCLR: two views one after the other; the loss also depends on the order of the samples."""
    z = F.normalize(rd.loss.batch_rows(model(torch.cat([x, x.flip(1)])), views=True))
    n = len(z) // 2
    logits = (z @ z.t() * model.scale.exp()).fill_diagonal_(-9)
    return F.cross_entropy(logits, torch.arange(2 * n).roll(n)) + (z[1:] * z[:-1]).sum() * 0.01


def interleaved(model, x, y):
    """Two rows of each sample next to each other."""
    rows = torch.stack([x, x.flip(1)], dim=1).view(-1, 3)
    z = rd.loss.batch_rows(model(rows))
    targets = torch.arange(len(z))
    targets[::2] += 1
    targets[1::2] -= 1
    return F.cross_entropy((z @ z.t()).fill_diagonal_(-9) * model.scale, targets)


def supervised(model, x, y):
    """Labels, masks and a mean over the own samples in addition."""
    z = model(x)
    whole, labels, mask = (rd.loss.batch_rows(part) for part in (z, y, y > 0))
    same = (labels[:, None] == labels[None]).double()
    loss = (torch.cdist(whole, whole) * (2 * same - 1) * mask[:, None]).sum() / rd.loss.batch_count(len(x))
    return loss * model.scale + F.cross_entropy(z, y)


LOSSES = {"views": views_of, "interleaved": interleaved, "supervised": supervised}


def train(number, kind):
    """Return the loss that is shown, that of an evaluation, and all parameters after each step of an epoch."""
    torch.manual_seed(0)
    rd.options._values.update(batch="global")
    model = Embedding().double()
    data = TensorDataset(torch.rand(number, 3).double(), torch.randint(0, 3, (number,)))
    loader = rd.distribute_loader(DataLoader(data, 6))
    wrapped = rd.distribute_model(model)
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1)
    steps = []
    for x, y in loader:
        optimizer.zero_grad()
        loss = LOSSES[kind](wrapped, x, y)
        loss.backward()
        optimizer.step()
        weights = torch.cat([p.detach().flatten() for p in model.parameters()]).tolist()
        steps.append([rd.reduce_loss(loss).item(), *weights])
    with torch.no_grad():  # of an evaluation each rank has other batches, or none
        steps.append([LOSSES[kind](wrapped, *data[:5]).item() if rd.get_rank() == 0 else 0.0])
    rd.options._values.clear()
    return steps


@pytest.mark.parametrize("kind", LOSSES)
@pytest.mark.parametrize("number", [12, 13, 17])
@pytest.mark.parametrize("world_size", [2, 3])
def test_the_training_is_that_of_one_process(ranks, world_size, number, kind):
    alone = train(number, kind)
    for rank, steps in enumerate(ranks(world_size).run(train, number, kind)):
        assert len(steps) == len(alone)
        for step, expected in zip(steps[: -1 if rank else None], alone):
            assert step == pytest.approx(expected, rel=1e-10, abs=1e-12)


def rows_of_whole_batches():
    data = torch.arange(10.0).view(-1, 1)
    loader = DataLoader(TensorDataset(data), batch_sampler=BatchSampler(SequentialSampler(data), 2, drop_last=False))
    loader.batch_sampler.__class__ = type("Pairs", (BatchSampler,), {})  # whose batches are to stay whole
    return [rd.loss.batch_rows(x).flatten().tolist() for (x,) in rd.distribute_loader(loader)]


def test_batches_of_a_batch_sampler_follow_one_another(ranks):
    rows = sorted(ranks(2).run(rows_of_whole_batches)[0])
    assert all(part[0::2] == [value - 1 for value in part[1::2]] for part in rows)
    assert sorted(value for part in rows for value in part) == list(range(10))


def unclear_rows(number):
    loader = rd.distribute_loader(DataLoader(TensorDataset(torch.rand(12, 3)), 4))
    for _ in loader:
        rd.loss.batch_rows(torch.rand(number, 3))


def test_rows_that_are_not_of_samples_are_an_error(ranks):
    with pytest.raises(Exception, match="5 rows are to be gathered from all ranks"):
        ranks(2).run(unclear_rows, 5)
