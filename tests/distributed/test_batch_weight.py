"""An uneven last batch: the gradients of all ranks together are those of one process."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import retrofit.distributed as rd


@dataclass
class Output:
    parts: dict
    label: str = ""


class Entries(OrderedDict):
    """A dict that takes its entries one by one, as the outputs of transformers do."""

    def update(self, *args, **kwargs):
        raise TypeError("no update()")


class Pair(nn.Module):
    """Takes a list and gives a dict in an object, with a term that does not depend on what comes in."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(3, 4), nn.Linear(3, 4)

    def forward(self, inputs, scale=1.0):
        total = self.first(inputs[0]) + scale * self.second(inputs[1])
        return Output(Entries(sum=total, norm=self.first.weight.square().sum()))


def of_count(output, target):
    """Return a loss over the elements that count: none at all on some ranks, and in some batches."""
    count = (target > 1.2).sum()
    total = (F.mse_loss(output, target, reduction="none") * (target > 1.2)).sum() + output.square().sum()
    return total / rd.loss.rank_share(max(rd.loss.batch_count(count), 1)) + total / rd.loss.rank_share(
        rd.loss.batch_count(count) + 3.0
    )


def of_size(output, target):
    return F.mse_loss(output, target) / rd.loss.batch_count(len(target)) + output.mean() / rd.loss.batch_count(
        torch.tensor(len(target))
    )


def train(number, kind):
    """Return the loss that is shown and all parameters after each step of an epoch of `number` samples."""
    torch.manual_seed(0)
    rd.options._values.update(batch="global")
    lower, upper = nn.Linear(3, 3), Pair()
    data = TensorDataset(torch.randn(number, 3), torch.randn(number, 4))
    loader = rd.distribute_loader(DataLoader(data, 6))
    lower, upper = rd.distribute_model(lower.double()), rd.distribute_model(upper.double())
    optimizer = torch.optim.SGD([*lower.parameters(), *upper.parameters()], lr=0.1)
    steps = []
    for x, y in loader:
        hidden = lower(x.double()).tanh()
        out = upper([hidden, x.double()], scale=0.5).parts
        optimizer.zero_grad()
        if kind == "sum":
            loss = F.mse_loss(out["sum"], y.double(), reduction="sum")
            rd.loss.sum_loss(loss).backward()
            shown = 0.0
        elif kind in ("sum over a count", "mean over the size"):
            loss = of_count(out["sum"], y.double()) if kind == "sum over a count" else of_size(out["sum"], y.double())
            loss.backward()
            shown = rd.reduce_loss(loss).item()
        else:
            loss = F.mse_loss(out["sum"], y.double()) + hidden.square().mean() + 0.1 * out["norm"]
            loss.backward()
            shown = rd.reduce_loss(loss).item()
        optimizer.step()
        steps.append([shown, *torch.cat([p.detach().flatten() for p in optimizer.param_groups[0]["params"]]).tolist()])
    rd.options._values.clear()
    return steps


@pytest.mark.parametrize("kind", ["mean", "sum", "sum over a count", "mean over the size"])
@pytest.mark.parametrize("number", [12, 13, 14, 16, 17])
@pytest.mark.parametrize("world_size", [2, 3])
def test_the_training_is_that_of_one_process(ranks, world_size, number, kind):
    alone = train(number, kind)
    for steps in ranks(world_size).run(train, number, kind):
        assert len(steps) == len(alone)
        for step, expected in zip(steps, alone):
            assert step == pytest.approx(expected, rel=1e-12, abs=1e-12)


def counts():
    with torch.no_grad():  # an evaluation, of which ranks may have other numbers of batches
        alone = rd.loss.batch_count(rd.get_rank()), rd.loss.rank_share(6)
    return alone, rd.loss.batch_count(2), rd.loss.batch_count(torch.tensor(rd.get_rank())).item(), rd.loss.rank_share(6)


def test_the_batch_size_over_all_ranks(ranks):
    assert ranks(3).run(counts) == [((rank, 6), 6, 3, 2.0) for rank in range(3)]
    assert (rd.loss.batch_count(7), rd.loss.rank_share(7)) == (7, 7)


def peek_and_leave():
    rd.options._values.update(batch="global")
    loader = rd.distribute_loader(DataLoader(TensorDataset(torch.arange(7.0)), 4))
    loss = torch.tensor(float(rd.get_rank()))
    found = []
    next(iter(loader))
    for _ in loader:
        next(iter(loader))
        found.append(rd.reduce_loss(loss).item())
    found += [rd.reduce_loss(loss).item(), rd.loss.reduce_last_loss(loss).item()]
    rd.options._values.clear()
    return found


def test_a_weight_ends_with_its_batch(ranks):
    # Ranks 0 and 1 have 2 and 2 samples, then 2 and 1, then no batch is in use, and the last one had 2 and 1.
    assert ranks(2).run(peek_and_leave) == [pytest.approx([0.5, 1 / 3, 0.5, 1 / 3])] * 2


def keeps_its_class():
    class Loader(DataLoader):
        label = "own"

    loader = rd.distribute_loader(Loader(TensorDataset(torch.arange(8.0)), 2))
    return loader.__class__.__name__, loader.label, isinstance(loader, Loader), len(loader), len(list(loader))


def test_a_loader_keeps_its_class(ranks):
    assert ranks(2).run(keeps_its_class) == [("Loader", "own", True, 2, 2)] * 2
