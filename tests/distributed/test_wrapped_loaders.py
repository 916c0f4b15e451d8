"""Loaders inside other objects: sharded in their place, or refused with the remedy."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset
from tqdm import tqdm

import retrofit.distributed as rd

NUMBERS = TensorDataset(torch.arange(12))


class Prefetcher:
    def __init__(self, loader):
        self.loader = loader

    def __iter__(self):
        yield from self.loader


class Two:
    def __init__(self, loader):
        self.loader, self.other = loader, DataLoader(NUMBERS, 2)


class Started:
    def __init__(self, loader):
        self.batches = iter(loader)

    def __iter__(self):
        return self.batches


class KeepsIterator(DataLoader):
    """A loader that starts its workers once, and draws from the same iterator in each epoch."""

    def __init__(self, dataset):
        super().__init__(dataset, 2)
        self.iterator = super().__iter__()

    def __iter__(self):
        return self.iterator


class Counted(DataLoader):
    """A loader that counts its batches once, when it is made."""

    def __init__(self, dataset, most=100):
        super().__init__(dataset, 2)
        self.number = min(-(-len(dataset) // 2), most)

    def __len__(self):
        return self.number


WRAPPERS = {
    "a prefetcher": Prefetcher,
    "a prefetcher of a prefetcher": lambda loader: Prefetcher(Prefetcher(loader)),
    "a bar": lambda loader: tqdm(loader, disable=True),
    "a sharded loader": rd.distribute_loader,
    "a prefetcher of a sharded loader": lambda loader: Prefetcher(rd.distribute_loader(loader)),
}
OTHERS = {
    "two": (Two, "Two: it holds more than one DataLoader"),
    "started": (Started, "its attribute 'batches' is an iterator that was made before"),
    "started itself": (
        lambda loader: KeepsIterator(loader.dataset),
        "its attribute 'iterator' is an iterator that was made before",
    ),
    "number": (len, "int: it holds no DataLoader, and cannot be iterated"),
}


def samples_of(kind):
    given = WRAPPERS[kind](DataLoader(NUMBERS, 2, shuffle=True))
    loader = rd.distribute_loader(given)
    assert loader is given
    return [batch[0].tolist() for batch in loader]


@pytest.mark.parametrize("kind", WRAPPERS)
def test_each_rank_has_its_shard_of_the_loader_inside(ranks, kind):
    shares = ranks(2).run(samples_of, kind)
    assert [len(share) for share in shares] == [3, 3]
    assert sorted(i for share in shares for batch in share for i in batch) == list(range(12))


@pytest.mark.parametrize("kind", WRAPPERS)
def test_one_process_has_what_it_had(ranks, kind):
    (alone,) = ranks(1).run(samples_of, kind)
    assert len(alone) == 6


def orders_of(kind, epochs):
    loader = rd.distribute_loader(WRAPPERS[kind](DataLoader(NUMBERS, 2, shuffle=True)))
    orders = []
    for epoch in epochs:
        rd.set_epoch(loader, epoch)
        orders.append([batch[0].tolist() for batch in loader])
    return orders


@pytest.mark.parametrize("kind", WRAPPERS)
def test_the_epoch_chooses_the_order_of_the_loader_inside(ranks, kind):
    for first, second, again in ranks(2).run(orders_of, kind, (3, 4, 3)):
        assert first == again != second
    assert [len(order) for order in ranks(1).run(orders_of, kind, (3, 4))[0]] == [6, 6]


def error_of(kind):
    given = OTHERS[kind][0](DataLoader(NUMBERS, 2))
    try:
        assert rd.distribute_loader(given) is given or isinstance(given, DataLoader)
    except TypeError as error:
        return str(error)


@pytest.mark.parametrize("kind", OTHERS)
def test_anything_else_is_an_error_on_several_ranks_and_nothing_on_one(ranks, kind):
    assert ranks(1).run(error_of, kind) == [None]
    for message in ranks(2).run(error_of, kind):
        assert OTHERS[kind][1] in message and "give distribute_loader the DataLoader" in message


def lengths():
    shortened = Counted(NUMBERS, most=2)
    return [len(rd.distribute_loader(loader)) for loader in (Counted(NUMBERS), shortened)]


@pytest.mark.parametrize("world_size", [1, 2])
def test_a_length_that_a_loader_counted_once_is_that_of_the_shard(ranks, world_size):
    assert ranks(world_size).run(lengths) == [[6 // world_size, 2]] * world_size
