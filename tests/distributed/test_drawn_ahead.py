"""Batches that a script draws before it has used the ones before: each counts by its own samples."""

from __future__ import annotations

import itertools
import queue
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, Sampler, TensorDataset

import retrofit.distributed as rd
from retrofit.distributed.data.batch import _ahead


class Prefetcher:
    """Holds the next batch while one is used."""

    def __init__(self, loader):
        self.batches = iter(loader)
        self.preload()

    def preload(self):
        try:
            self.waiting = next(self.batches)
        except StopIteration:
            self.waiting = None

    def next(self):
        batch = self.waiting
        self.preload()
        return batch


def prefetched(loader):
    prefetcher = Prefetcher(loader)
    batch = prefetcher.next()
    while batch is not None:
        yield batch
        batch = prefetcher.next()


def of_thread(loader):
    waiting: Any = queue.Queue(2)

    def fill():
        for batch in loader:
            waiting.put(batch)
        waiting.put(None)

    threading.Thread(target=fill).start()
    yield from iter(waiting.get, None)


def in_groups(loader):
    """Yield the batches after two of them have been collected each time."""
    batches = iter(loader)
    while group := list(itertools.islice(batches, 2)):
        yield from group


class Lines(IterableDataset):
    def __init__(self, data):
        self.data = data

    def __iter__(self):
        return iter(self.data)


class ByLength(Sampler):
    def __init__(self, number):
        self.number = number

    def __iter__(self):
        yield from torch.arange(self.number).split([3, 6, 2, self.number - 11])

    def __len__(self):
        return 4


def loader_over(number, kind) -> Any:
    data = TensorDataset(torch.randn(number, 3, generator=torch.Generator().manual_seed(0)))
    if kind == "stream":
        return DataLoader(Lines(data), 4)
    if kind == "batches by length":
        return DataLoader(data, batch_sampler=ByLength(number))
    return DataLoader(data, 4)


def train(how, number, kind="samples"):
    """Return the parameters after each step of two epochs, in evaluations a figure that every rank has whole."""
    torch.manual_seed(0)
    rd.options._values.update(batch="global")
    loader = rd.distribute_loader(loader_over(number, kind))
    model = rd.distribute_model(nn.Linear(3, 2).double())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    found = []
    kept = list(loader) if how == "list" else []
    for _ in range(2):
        batches: Iterator[Any] = iter(kept) if kept else HOWS[how](loader)
        for (x,) in batches:
            optimizer.zero_grad()
            loss = F.mse_loss(model(x.double()), x.double()[:, :2])
            loss.backward()
            optimizer.step()
            shown = rd.reduce_loss(loss).item()
            found.append([shown, *torch.cat([p.detach().flatten() for p in model.parameters()]).tolist()])
        model.eval()
        with torch.no_grad():
            model(torch.ones(5, 3).double())
        found.append([rd.data.batch.reduce_total(1.0)])
        model.train()
    rd.options._values.clear()
    return found


HOWS: dict[str, Any] = {"plain": iter, "prefetcher": prefetched, "thread": of_thread, "groups": in_groups, "list": iter}


@pytest.mark.parametrize("number", [4, 7, 8, 15])
@pytest.mark.parametrize("how", HOWS)
def test_the_training_is_that_of_one_process(ranks, how, number):
    alone = train(how, number)
    for steps in ranks(2).run(train, how, number):
        assert len(steps) == len(alone)
        for step, expected in zip(steps, alone):
            assert step == pytest.approx(expected, rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("kind", ["stream", "batches by length"])
@pytest.mark.parametrize("how", ["plain", "prefetcher", "groups", "list"])
def test_streams_and_batches_of_a_script(ranks, how, kind):
    alone = train(how, 15, kind)
    for steps in ranks(2).run(train, how, 15, kind):
        assert len(steps) == len(alone)
        for step, expected in zip(steps, alone):
            assert step == pytest.approx(expected, rel=1e-12, abs=1e-12)


def thread_over(kind):
    loader = rd.distribute_loader(loader_over(15, kind))
    errors = []

    def draw():
        try:
            next(iter(loader))
        except RuntimeError as error:
            errors.append(str(error))

    thread = threading.Thread(target=draw)
    thread.start()
    thread.join()
    return errors


@pytest.mark.parametrize("kind", ["stream", "batches by length"])
def test_a_thread_does_not_communicate(ranks, kind):
    for errors in ranks(2).run(thread_over, kind):
        assert len(errors) == 1 and "without the thread" in errors[0]


class Both(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def forward(self, first, second):
        return self.layer(first).sum() + self.layer(second).sum()


def two_that_fit():
    _ahead.clear()  # of the tests before in these processes
    list(rd.distribute_loader(loader_over(15, "samples")))
    model = rd.distribute_model(Both())
    try:
        model(torch.ones(12, 4), torch.ones(9, 4))
    except RuntimeError as error:
        return str(error)
    finally:
        _ahead.clear()


def test_an_input_that_fits_two_batches_is_an_error(ranks):
    for error in ranks(2).run(two_that_fit):
        assert "(4, 4) or (4, 3) samples" in error
