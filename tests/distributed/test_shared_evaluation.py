"""An evaluation shared out by whole batches: every batch once, results as one process has them."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, SequentialSampler, TensorDataset

import retrofit.distributed as rd

NUMBERS = TensorDataset(torch.arange(23))


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(23))


def loader_of(kind):
    if kind == "stream":
        return DataLoader(Stream(), 4)
    if kind == "batch_sampler":
        return DataLoader(NUMBERS, batch_sampler=BatchSampler(SequentialSampler(NUMBERS), 4, False))
    if kind == "unbatched":
        return DataLoader(NUMBERS, batch_size=None)
    return DataLoader(NUMBERS, 4, shuffle=kind == "shuffled", drop_last=kind == "drop_last")


def batches_of(loader):
    return [(batch[0] if isinstance(batch, list) else batch).reshape(-1).tolist() for batch in loader]


def two_passes(kind):
    loader = loader_of(kind)
    torch.manual_seed(rd.get_rank())
    share = rd.share_batches(loader)
    length = len(share) if hasattr(share, "__len__") else None
    first, second = batches_of(share), batches_of(rd.share_batches(loader))
    assert length in (None, len(first))
    return first, second


@pytest.mark.parametrize("kind", ["plain", "drop_last", "batch_sampler", "unbatched", "stream"])
@pytest.mark.parametrize("world_size", [2, 3])
def test_the_batches_equal_those_of_one_process(ranks, kind, world_size):
    alone = batches_of(loader_of(kind))
    shares = ranks(world_size).run(two_passes, kind)
    for rank, passes in enumerate(shares):
        assert passes == (alone[rank::world_size],) * 2


def test_a_shuffled_order_is_the_same_on_all_ranks_and_new_each_time(ranks):
    orders = []
    for number in range(2):
        shares = [passes[number] for passes in ranks(3).run(two_passes, "shuffled")]
        assert sorted(i for share in shares for batch in share for i in batch) == list(range(23))
        assert [len(share) for share in shares] == [2, 2, 2]
        orders.append(shares)
    assert orders[0] != orders[1]


def sums():
    rank = rd.get_rank()
    start = 0 if rank else torch.tensor([1, 2])
    return rd.sum_over_ranks(rank + 1, 0.1 * rank, torch.tensor([rank, 1]), start), rd.sum_over_ranks(2**60 + rank)


def test_sums_keep_their_type(ranks):
    for (whole, fraction, tensor, mixed), large in ranks(3).run(sums):
        assert (whole, type(whole)) == (6, int) and (fraction, type(fraction)) == (0.0 + 0.1 + 0.2, float)
        assert tensor.tolist() == [3, 3] and tensor.dtype == torch.int64 and mixed.tolist() == [1, 2]
        assert large == 3 * 2**60 + 3


def sums_of_shares():
    whole, meter = loader_of("plain"), Meter()
    share = rd.distribute_loader(loader_of("plain"))
    meter.update(1.0, 2)
    rd.evaluation.sum_attributes(meter, "sum", of=whole)
    before = meter.sum
    rd.evaluation.sum_attributes(meter, "sum", of=share)
    return rd.sum_over_ranks(5, of=whole), rd.sum_over_ranks(5, 1, of=share), before, meter.sum


def test_sums_of_a_sharded_loader_are_over_all_ranks(ranks):
    assert ranks(3).run(sums_of_shares) == [(5, (15, 3), 2.0, 6.0)] * 3


def lists(count):
    """Fill two lists in a loop over numbered batches."""
    numbers, tensors = [], []
    for number in rd.share_batches(range(count)):
        numbers.append(number)
        tensors.append(torch.full((2,), number))
    numbers, tensors = rd.evaluation.gather_batches(numbers, tensors)
    return numbers, torch.stack(tensors).tolist() if tensors else [], rd.evaluation.gather_batches([rd.get_rank()])


@pytest.mark.parametrize("count", [0, 1, 5, 6])
def test_gathered_lists_are_in_the_order_of_one_process(ranks, count):
    for numbers, tensors, of_ranks in ranks(3).run(lists, count):
        assert numbers == list(range(count)) and tensors == [[number, number] for number in range(count)]
        assert of_ranks == [0, 1, 2]


class Meter:
    def __init__(self):
        self.sum, self.count, self.avg = 0, 0, 0

    def update(self, value, number):
        self.sum += value * number
        self.count += number
        self.avg = self.sum / self.count


def meters():
    meter = Meter()
    for value in rd.share_batches([1.0, 2.0, 6.0, 8.0]):
        meter.update(value, 2)
    rd.evaluation.sum_attributes(meter, "sum", "count", avg=lambda m: m.sum / m.count)
    return vars(meter)


def test_a_meter_counts_the_batches_of_all_ranks(ranks):
    assert ranks(3).run(meters) == [{"sum": 34.0, "count": 8, "avg": 4.25}] * 3


def test_one_process_is_unchanged():
    loader, values, meter = loader_of("plain"), [1, 2], Meter()
    assert rd.share_batches(loader) is loader and rd.sum_over_ranks(3) == 3 and rd.sum_over_ranks(3, 4) == (3, 4)
    assert rd.evaluation.gather_batches(values) is values
    rd.evaluation.sum_attributes(meter, "sum", avg=lambda m: 1 / 0)
    assert vars(meter) == vars(Meter())


class Cropped(TensorDataset):
    def __getitem__(self, index):
        return super().__getitem__(index)[0] + torch.rand(())


def whole_passes(kind):
    """Return two passes over all batches, and what the rank's own stream gives after that."""
    loader = DataLoader(Cropped(torch.arange(23)), 4, shuffle=True, num_workers=2 if kind == "workers" else 0)
    torch.manual_seed(rd.get_rank())
    passes = []
    for _ in range(2):
        batches = rd.evaluation.same_batches(loader)
        assert len(batches) == 6 and batches.dataset is loader.dataset
        passes.append([(batch.tolist(), torch.rand(1).item()) for _, batch in zip(range(3), batches)])  # as for a mask
    return passes, torch.rand(1).item()


@pytest.mark.parametrize("kind", ["plain", "workers"])
def test_a_whole_evaluation_draws_the_same_on_all_ranks(ranks, kind):
    (first, own), (second, other) = ranks(2).run(whole_passes, kind)
    assert first == second and own != other
    assert first[0] != first[1] and len(first[0]) == 3


def seeded_passes(kind):
    """Return two passes, each seeded just before, over batches that a sampler of the script's own draws at random."""
    torch.manual_seed(rd.get_rank())
    sampler = RandomSampler(range(23), replacement=True, num_samples=12)
    loader = DataLoader(TensorDataset(torch.arange(23)), 4, sampler=sampler)
    share = {"shared": rd.share_batches, "whole": rd.evaluation.same_batches}[kind]
    passes = []
    for _ in range(2):
        torch.manual_seed(5)
        passes.append(rd.evaluation.gather_batches([batch.tolist() for (batch,) in share(loader)]))
    return passes


@pytest.mark.parametrize("kind", ["shared", "whole"])
def test_an_evaluation_that_the_script_seeds_has_the_batches_of_one_process(ranks, kind):
    alone = seeded_passes(kind)
    of_ranks = ranks(2).run(seeded_passes, kind)
    assert alone[0] == alone[1]
    if kind == "shared":
        assert of_ranks == [alone, alone]
    else:  # what gather_batches has from both ranks
        assert [one[::2] for one in of_ranks[0]] == [one[1::2] for one in of_ranks[0]] == alone


def test_one_process_evaluates_its_loader_unchanged():
    loader = loader_of("shuffled")
    assert rd.evaluation.same_batches(loader) is loader
