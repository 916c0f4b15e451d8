"""Iterables of batches that hold no DataLoader: each rank takes whole batches in turn, or its rows of every batch."""

from __future__ import annotations

import argparse
import random

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import retrofit.distributed as rd
from retrofit.distributed.data.batch import weight_of
from retrofit.distributed.data.loaders import is_shard
from retrofit.distributed.process.options import forget_options, set_options


class Batches:
    """The numbers below `total`, `size` at a time, in an order that is drawn for each pass if `mixed`."""

    def __init__(self, total, size=2, mixed=False):
        self.numbers, self.size, self.mixed = list(range(total)), size, mixed

    def __iter__(self):
        if self.mixed:
            random.shuffle(self.numbers)
        for start in range(0, len(self.numbers), self.size):
            yield torch.tensor(self.numbers[start : start + self.size])

    def __len__(self):
        return -(-len(self.numbers) // self.size)


class Steps(Batches):
    """The same one after another, by `next`; it begins again after its end."""

    def __init__(self, total):
        super().__init__(total)
        self.start = 0

    def __iter__(self):
        return self

    def __next__(self):
        if self.start >= len(self.numbers):
            self.start = 0
            raise StopIteration
        self.start += self.size
        return torch.tensor(self.numbers[self.start - self.size : self.start])


class OwnOrder(Batches):
    def __iter__(self):
        random.Random(rd.get_rank()).shuffle(self.numbers)
        return super().__iter__()


class OwnNumber(Batches):
    def __init__(self, total):
        super().__init__(total + 2 * rd.get_rank())


class Named(DataLoader):
    """A loader by its class alone: it never becomes one of torch's."""

    def __init__(self, total):
        self.numbers = Batches(total)

    def __iter__(self):
        yield from self.numbers


class Sliced(DataLoader):
    """A loader of torch that gives batches of its own, past its sampler."""

    def __init__(self, total):
        super().__init__(range(total), batch_size=2)

    def __iter__(self):
        for start in range(0, len(self.dataset), self.batch_size):
            yield torch.tensor(self.dataset[start : start + self.batch_size])


class TimeFirst:
    """Texts of other lengths, of which the samples are the columns; the last batch has fewer."""

    def __iter__(self):
        yield from (torch.zeros(length, 4) for length in (5, 5, 7, 3, 6, 2, 8))
        yield torch.zeros(9, 2)


class Pairs(Batches):
    """Samples and labels: a tuple of a tensor and an array, or a dict with a list."""

    def __init__(self, total, of_dicts):
        super().__init__(total, 4)
        self.of_dicts = of_dicts

    def __iter__(self):
        for batch in super().__iter__():
            yield {"x": batch, "y": batch.tolist()} if self.of_dicts else (batch, batch.numpy())


def passes(batches, number=2):
    """Return the batches of some passes, with their weights."""
    random.seed(3)
    torch.manual_seed(3)
    loader = rd.distribute_loader(batches)
    assert rd.distribute_loader(loader) is loader
    assert (loader is batches) == (rd.get_world_size() == 1)
    assert rd.get_world_size() == 1 or is_shard(loader)
    found = []
    for _ in range(number):
        drawn = []
        for batch in loader:
            drawn.append((batch.tolist(), weight_of()))
            random.random()  # this rank's own draws change nothing
            torch.rand(rd.get_rank() + 1)
        found.append(drawn)
    return found


def numbers_of(shares, number):
    return sorted(i for found in shares for batch, weight in found[number] if weight for i in batch)


@pytest.mark.parametrize("world_size", [2, 3])
@pytest.mark.parametrize("mixed", [False, True])
def test_every_batch_goes_to_one_rank(ranks, world_size, mixed):
    shares = ranks(world_size).run(passes, Batches(24, mixed=mixed))
    for number in range(2):
        assert numbers_of(shares, number) == list(range(24))
        assert {len(found[number]) for found in shares} == {12 // world_size}
    first, second = shares[0]
    assert (first != second) == mixed


def test_the_batches_of_all_ranks_are_those_of_one_process_in_turn(ranks):
    shares = ranks(2).run(passes, Batches(8))
    assert [[batch for batch, _ in found[0]] for found in shares] == [[[0, 1], [4, 5]], [[2, 3], [6, 7]]]


@pytest.mark.parametrize("kind", [Named, Sliced])
def test_a_class_of_loaders_with_batches_of_its_own(ranks, kind):
    shares = ranks(2).run(passes, kind(8))
    assert [[batch for batch, _ in found[0]] for found in shares] == [[[0, 1], [4, 5]], [[2, 3], [6, 7]]]


@pytest.mark.parametrize("kind", [Batches, Steps])
def test_a_rank_that_has_no_more_repeats_a_batch_that_counts_nothing(ranks, kind):
    shares = ranks(2).run(passes, kind(6))
    for number in range(2):
        assert shares[0][number] == [([0, 1], 1.0), ([4, 5], 2.0)]
        assert shares[1][number] == [([2, 3], 1.0), ([2, 3], 0.0)]


def test_a_shorter_batch_counts_by_its_samples(ranks):
    shares = ranks(2).run(passes, Batches(15, 4))
    assert [weight for _, weight in shares[0][1]] == [1.0, 8 / 7]
    assert [weight for _, weight in shares[1][1]] == [1.0, 6 / 7]


def weights_of_columns():
    loader = rd.distribute_loader(TimeFirst())
    return [[weight_of() for _ in loader] for _ in range(2)]


def test_samples_in_columns_are_counted_where_the_rows_differ(ranks):
    shares = ranks(2).run(weights_of_columns)
    assert [found[0] for found in shares] == [[1.0, 1.0, 1.0, 4 / 3], [1.0, 1.0, 1.0, 2 / 3]]
    assert shares[0][1] == shares[0][0]


class Shuffled(Batches):
    def shuffle(self):
        random.shuffle(self.numbers)


def shuffled_between():
    random.seed(3)
    batches = Shuffled(12)
    loader = rd.distribute_loader(batches)
    found = []
    for _ in range(3):
        loader.shuffle()
        found.append([batch.tolist() for batch in loader])
        torch.rand(rd.get_rank() + 1)
    return found, torch.rand(()).item()


def test_samples_may_be_shuffled_between_the_passes(ranks):
    (first, own), (second, other) = ranks(2).run(shuffled_between)
    for one, two in zip(first, second):
        assert sorted(i for batch in one + two for i in batch) == list(range(12))
    assert first[0] != first[1] and own != other


def drawn_by_next(total):
    loader = rd.distribute_loader(Steps(total))
    drawn, ends = [], 0
    while len(drawn) < 5:
        try:
            drawn.append(next(loader).tolist())
        except StopIteration:
            ends += 1
    return drawn, ends, len(loader), loader.size


def test_batches_are_drawn_one_by_one_and_again(ranks):
    first, second = ranks(2).run(drawn_by_next, 8)
    assert first == ([[0, 1], [4, 5], [0, 1], [4, 5], [0, 1]], 2, 2, 2)
    assert second == ([[2, 3], [6, 7], [2, 3], [6, 7], [2, 3]], 2, 2, 2)


def numbers_of_generator():
    return [batch.tolist() for batch in rd.distribute_loader(torch.tensor([i]) for i in range(4))]


def test_a_generator_is_sharded(ranks):
    assert ranks(2).run(numbers_of_generator) == [[[0], [2]], [[1], [3]]]


def rows_of_batches(of_dicts):
    set_options(argparse.Namespace(batch="global"))
    loader = rd.distribute_loader(Pairs(9, of_dicts))
    found = []
    for batch in loader:
        first, second = batch.values() if of_dicts else batch
        assert isinstance(second, list if of_dicts else np.ndarray) and list(second) == first.tolist()
        found.append((first.tolist(), weight_of()))
    length = len(loader)
    forget_options()
    return found, length


@pytest.mark.parametrize("of_dicts", [False, True])
def test_a_global_batch_is_split_by_rows(ranks, of_dicts):
    shares = ranks(2).run(rows_of_batches, of_dicts)
    assert shares[0] == ([([0, 2], 1.0), ([4, 6], 1.0), ([8], 2.0)], 3)
    assert shares[1] == ([([1, 3], 1.0), ([5, 7], 1.0), ([8], 0.0)], 3)


def parts_of(batches, **options):
    set_options(argparse.Namespace(batch="global"))
    try:
        return [(batch, weight_of()) for batch in rd.distribute_loader(batches, **options)]
    finally:
        forget_options()


@pytest.mark.parametrize("batch", [([0, 1, 2], [3, 4]), [[1, 2], [3, 4], [5, 6]]])
def test_what_cannot_be_split_by_rows_counts_on_rank_0(ranks, batch):
    assert ranks(2).run(parts_of, [batch]) == [[(batch, 2.0)], [(batch, 0.0)]]


def parts_of_sparse():
    batches = [torch.eye(3).to_sparse(), (torch.eye(3).to_sparse(), torch.arange(3))]
    alone, (first, second) = (batch for batch, _ in parts_of(batches))
    return alone.to_dense().tolist(), first.to_dense().tolist(), second.tolist()


def test_a_sparse_batch_is_split_by_rows(ranks):
    rows = torch.eye(3).tolist()
    assert ranks(2).run(parts_of_sparse) == [
        ([rows[0], rows[2]], [rows[0], rows[2]], [0, 2]),
        ([rows[1]], [rows[1]], [1]),
    ]


def parts_of_kept():
    return parts_of([[1, 2], [3, 4]], keep_batches=True)


def test_batches_that_are_kept_count_on_rank_0(ranks):
    assert ranks(2).run(parts_of_kept) == [[([1, 2], 2.0), ([3, 4], 2.0)], [([1, 2], 0.0), ([3, 4], 0.0)]]


@pytest.mark.parametrize("kind", [OwnOrder, OwnNumber])
def test_ranks_that_draw_other_batches_are_an_error(ranks, kind):
    with pytest.raises(Exception, match=f"the ranks draw different batches from {kind.__name__}"):
        ranks(2).run(passes_of, kind, 8)


def passes_of(kind, total):
    return passes(kind(total))


def test_fewer_batches_than_ranks_are_an_error(ranks):
    with pytest.raises(Exception, match=r"Batches gives 1 batches, fewer than there are ranks \(2\)"):
        ranks(2).run(passes, Batches(2))


def part_by_index():
    with pytest.raises(TypeError, match="give it what yields the batches"):
        rd.distribute_loader([1, 2, 3])[1:]


def test_an_index_into_a_list_is_an_error(ranks):
    ranks(2).run(part_by_index)


def rows_of_indices():
    set_options(argparse.Namespace(batch="global"))
    try:
        return list(rd.distribute_loader([[3, 1, 4], [1, 5, 9]]))
    finally:
        forget_options()


def test_a_global_batch_of_indices_is_split(ranks):
    assert ranks(2).run(rows_of_indices) == [[[3, 4], [1, 9]], [[1], [5]]]


def sample(number, kind):
    """One of the samples of a batch, with `number` rows or entries of its own."""
    rows = torch.full((number, 2), number)
    return {"dict": {"rows": rows}, "tuple": (rows, number), "tensor": rows, "array": rows.numpy()}[kind]


def number_of(one):
    if isinstance(one, dict):
        return len(one["rows"])
    return one[1] if isinstance(one, tuple) else len(one)


def lists_of_arrays(batches):
    set_options(argparse.Namespace(batch="global"))
    try:
        return [(own, weight_of()) for own in rd.distribute_loader(batches)]
    finally:
        forget_options()


@pytest.mark.parametrize("number", [2, 4])
def test_lists_of_several_arrays_of_a_batch_are_not_split_by_their_entries(ranks, number):
    """Inputs and targets of a model with two of each; also where there are as many samples in them."""
    moving, fixed = np.zeros((number, 3)), np.ones((number, 3))
    found = ranks(2).run(lists_of_arrays, [([moving, fixed], [fixed, moving])] * 2)
    for rank, weight in zip(found, (2.0, 0.0)):  # rank 0's count
        for (inputs, targets), own_weight in rank:
            assert [len(inputs), len(targets), own_weight] == [2, 2, weight]
            assert [len(part) for part in (*inputs, *targets)] == [number] * 4


def lists_of_samples(kind, batch):
    set_options(argparse.Namespace(batch=batch))
    try:
        batches = [[sample(number, kind) for number in numbers] for numbers in ((5, 1, 4, 2, 3), (7, 9, 8, 6))]
        return [([number_of(one) for one in own], weight_of()) for own in rd.distribute_loader(batches)]
    finally:
        forget_options()


@pytest.mark.parametrize("kind", ["dict", "tuple", "tensor", "array"])
def test_a_list_of_samples_is_split_and_counted_by_its_samples(ranks, kind):
    """And not by what each of them has: rows of a sequence, atoms of a molecule."""
    whole = ranks(2).run(lists_of_samples, kind, "per_gpu")
    assert whole == [[([5, 1, 4, 2, 3], 10 / 9)], [([7, 9, 8, 6], 8 / 9)]]
    split = ranks(2).run(lists_of_samples, kind, "global")
    assert split == [[([5, 4, 3], 6 / 5), ([7, 8], 1.0)], [([1, 2], 4 / 5), ([9, 6], 1.0)]]


def drawn_batches(batch_size):
    x, y = rd.data.own_draw(([[1], [2], [3], [4]], torch.arange(8).reshape(4, 2)), batch_size)
    return x, y.view(-1).tolist()


def test_the_samples_of_a_drawn_batch_are_taken_by_rank(ranks):
    assert ranks(2).run(drawn_batches, 2) == [([[1], [3]], [0, 1, 4, 5]), ([[2], [4]], [2, 3, 6, 7])]


def test_a_drawn_batch_of_other_rows_is_an_error(ranks):
    with pytest.raises(Exception, match=r"a batch of 6 samples was asked for, and its parts have \[4, 4\] rows"):
        ranks(2).run(drawn_batches, 3)
