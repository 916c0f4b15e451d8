"""A criterion for a library that calls backward itself: the value of all ranks' samples, the gradient of one rank's."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import retrofit.distributed as rd


class Finder:
    """A range test as a library makes it: it trains at growing rates, and stops where the loss grows too large."""

    def __init__(self, model, optimizer, criterion):
        self.model, self.optimizer, self.criterion = model, optimizer, criterion
        self.losses = []

    def range_test(self, loader, rate, factor):
        for x, y in loader:
            self.optimizer.param_groups[0]["lr"] = rate = rate * factor
            self.optimizer.zero_grad()
            loss = self.criterion(self.model(x), y)
            loss /= 2
            loss.backward()
            self.optimizer.step()
            self.losses.append(loss.item())
            if self.losses[-1] > 3 * min(self.losses):
                break


def search(number):
    """Return the losses that a range test saw, the parameters that it left, and a loss outside the training."""
    torch.manual_seed(0)
    rd.options._values.update(batch="global")
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    data = TensorDataset(torch.rand(number, 3).double(), torch.rand(number, 2).double().cumsum(0))
    loader = rd.distribute_loader(DataLoader(data, 6))
    model = rd.distribute_model(model)
    criterion = rd.search.whole_batch_value(nn.MSELoss())
    finder = Finder(model, torch.optim.SGD(model.parameters(), lr=1e-6), criterion)
    finder.range_test(loader, 1e-3, 3.0)
    with torch.no_grad():
        apart = criterion(torch.zeros(2), torch.full((2,), float(rd.get_rank()))).item()
    rd.options._values.clear()
    return finder.losses, torch.cat([p.detach().flatten() for p in model.parameters()]).tolist(), apart


@pytest.mark.parametrize("number", [36, 41])
@pytest.mark.parametrize("world_size", [2, 3])
def test_a_range_test_sees_on_every_rank_what_one_process_sees(ranks, world_size, number):
    losses, weights, _ = search(number)
    assert 1 < len(losses) < number / 6
    results = ranks(world_size).run(search, number)
    for rank, (own, of_rank, apart) in enumerate(results):
        assert own == results[0][0] and own == pytest.approx(losses, rel=1e-9)
        assert of_rank == pytest.approx(weights, rel=1e-9)
        assert apart == rank**2  # without gradients a loss is the rank's own


def test_one_process_keeps_the_criterion():
    criterion = nn.MSELoss()
    assert rd.search.whole_batch_value(criterion) is criterion
