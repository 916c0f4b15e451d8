"""Samplers and batch samplers of a script over several ranks: whole batches, orders without an end, wrong orders."""

from __future__ import annotations

import argparse
import random
from itertools import count, islice

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, Sampler, TensorDataset

import retrofit.distributed as rd
from retrofit.distributed.data.batch import weight_of
from retrofit.distributed.process.options import forget_options, set_options

NUMBERS = TensorDataset(torch.arange(26))


class ByLength(Sampler):
    """Batches of several sizes in a random order."""

    def __init__(self, sizes=(5, 3, 8, 2, 7, 1)):
        self.sizes = sizes

    def __iter__(self):
        starts = [sum(self.sizes[:i]) for i in range(len(self.sizes))]
        batches = [list(range(start, start + size)) for start, size in zip(starts, self.sizes)]
        random.shuffle(batches)
        return iter(batches)

    def __len__(self):
        return len(self.sizes)


class OwnOrder(ByLength):
    def __iter__(self):
        return iter(sorted(super().__iter__(), key=lambda batch: batch[0] * (1 - 2 * rd.get_rank())))


class Endless(Sampler):
    def __init__(self):
        pass

    def __iter__(self):
        for _ in count():
            yield from torch.randperm(26).tolist()


class Unsized(Sampler):
    def __init__(self):
        pass

    def __iter__(self):
        return iter(torch.randperm(26).tolist())


def drawn(sampler, batch_size=None, number=None, batch="per_gpu", **options):
    """Return the batches of two epochs with their weights, and the length of the loader."""
    set_options(argparse.Namespace(batch=batch))
    given = {"batch_sampler": sampler} if batch_size is None else {"sampler": sampler, "batch_size": batch_size}
    torch.manual_seed(5)
    loader = rd.distribute_loader(DataLoader(NUMBERS, **given), **options)
    forget_options()
    found = [[(batch.tolist(), weight_of()) for (batch,) in islice(loader, number)] for _ in range(2)]
    return found, len(loader) if hasattr(sampler, "__len__") else None


@pytest.mark.parametrize("world_size", [2, 3])
def test_whole_batches_are_split(ranks, world_size):
    shares = ranks(world_size).run(drawn, ByLength())
    for epoch in range(2):
        batches = [batch for found, _ in shares for batch, _ in found[epoch]]
        assert sorted(map(len, batches)) == [1, 2, 3, 5, 7, 8]
        assert sorted(number for batch in batches for number in batch) == list(range(26))
    assert {length for _, length in shares} == {6 // world_size}
    (first, second), _ = shares[0]
    assert first != second


def test_batches_count_by_their_samples(ranks):
    shares = ranks(2).run(drawn, ByLength())
    for (a, of_a), (b, of_b) in zip(shares[0][0][0], shares[1][0][0]):
        assert of_a == pytest.approx(2 * len(a) / len(a + b)) and of_b == pytest.approx(2 * len(b) / len(a + b))


def test_a_global_batch_is_split(ranks):
    shares = ranks(3).run(drawn, ByLength(), None, None, "global")
    assert {length for _, length in shares} == {6}
    for parts in zip(*(found[0] for found, _ in shares)):
        own = [batch for batch, weight in parts if weight]
        total = sum(map(len, own))
        assert len({number for batch in own for number in batch}) == total
        assert [weight for _, weight in parts if weight] == pytest.approx([3 * len(batch) / total for batch in own])
        assert len(own) == 3 or total < 3


def kept(batch):
    return drawn(ByLength(), batch=batch, keep_batches=True)


def test_a_global_batch_that_is_kept_counts_on_rank_0(ranks):
    shares = ranks(2).run(kept, "global")
    for epoch in range(2):
        batches = [[batch for batch, _ in found[epoch]] for found, _ in shares]
        assert batches[0] == batches[1] and sorted(map(len, batches[0])) == [1, 2, 3, 5, 7, 8]
        assert [{weight for _, weight in found[epoch]} for found, _ in shares] == [{2.0}, {0.0}]
    (first, _), (second, _) = ranks(2).run(kept, "per_gpu")
    assert sorted(len(batch) for batch, _ in first[0] + second[0]) == [1, 2, 3, 5, 7, 8]


def test_a_batch_that_is_missing_is_repeated_and_counts_nothing(ranks):
    shares = ranks(2).run(drawn, ByLength(sizes=(4, 4, 4)))
    assert [weight for _, weight in shares[0][0][0]] == [1.0, 2.0]
    assert [weight for _, weight in shares[1][0][0]] == [1.0, 0.0]


def test_torch_batch_samplers_are_split_by_samples(ranks):
    shares = ranks(2).run(drawn, BatchSampler(RandomSampler(NUMBERS), 4, drop_last=True))
    for epoch in range(2):
        batches = [batch for found, _ in shares for batch, _ in found[epoch]]
        assert [len(batch) for batch in batches] == [4] * 6
        assert len({number for batch in batches for number in batch}) == 24


def test_an_endless_sampler_is_split(ranks):
    shares = ranks(2).run(drawn, Endless(), 1, 13)
    assert sorted(number for found, _ in shares for batch, _ in found[0] for number in batch) == list(range(26))


def test_a_sampler_that_does_not_say_its_length_ends_on_all_ranks(ranks):
    shares = ranks(2).run(drawn, Unsized(), 4)
    for epoch in range(2):
        assert sorted(number for found, _ in shares for batch, _ in found[epoch] for number in batch) == list(range(26))
        assert [len(found[epoch]) for found, _ in shares] == [4, 4]


def test_ranks_that_draw_other_orders_are_an_error(ranks):
    with pytest.raises(Exception, match="the ranks draw different orders from OwnOrder"):
        ranks(2).run(drawn, OwnOrder())
