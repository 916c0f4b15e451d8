"""Loaders that are shared out over the ranks: nothing lost, nothing seen twice, nothing of the user's replaced."""

from __future__ import annotations

import random
from itertools import chain

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    WeightedRandomSampler,
)

from retrofit.distributed import distribute_loader, get_rank, share_batches
from retrofit.distributed.data.random_state import seed_everything, split_random_streams
from retrofit.distributed.data.sharding import (
    ShardedSampler,
    loader_workers,
    shard_loader,
)

shapes = st.tuples(st.integers(1, 60), st.integers(1, 5), st.integers(1, 7), st.booleans())


def shard_of(sampler, batch_size, rank, world_size, **options):
    """Return the sampler of a rank of so many."""
    shard = ShardedSampler(sampler, batch_size, **options)
    shard.rank, shard.world_size = rank, world_size
    return shard


def shards(sampler, world_size, batch_size, *, epoch=0, start=0, **options):
    """Return each rank's batches of one epoch, as index lists."""
    result = []
    for rank in range(world_size):
        shard = shard_of(sampler, batch_size, rank, world_size, **options)
        shard.set_epoch(epoch, start)
        result.append(list(BatchSampler(shard, batch_size, options.get("drop_last", False))))
    return result


def flat(batches):
    return list(chain.from_iterable(batches))


# ---- the training shard


@given(shape=shapes, epoch=st.integers(0, 3))
def test_shards_are_disjoint_and_complete_and_equally_long(shape, epoch):
    total, world_size, batch_size, drop_last = shape
    sampler = RandomSampler(range(total))
    parts = shards(sampler, world_size, batch_size, epoch=epoch, drop_last=drop_last)
    seen = flat(flat(parts))
    assert len({len(part) for part in parts}) == 1, "a rank with one batch more would wait for the others forever"
    if drop_last:
        assert len(seen) == len(set(seen)) == total - total % (batch_size * world_size)
        assert all(len(batch) == batch_size for batch in flat(parts))
    else:
        assert set(seen) == set(range(total))
        tail = total % (batch_size * world_size)
        num_repeated = world_size - tail if 0 < tail < world_size else 0
        assert len(seen) == total + num_repeated
    for rank, part in enumerate(parts):
        shard = shard_of(sampler, batch_size, rank, world_size, drop_last=drop_last)
        assert len(shard) == len(flat(part)), "len(loader) would be wrong"


@given(shape=shapes)
def test_the_global_batches_are_those_of_one_process(shape):
    total, world_size, batch_size, drop_last = shape
    sampler = RandomSampler(range(total))
    parts = shards(sampler, world_size, batch_size, drop_last=drop_last)
    (single,) = shards(sampler, 1, batch_size * world_size, drop_last=drop_last)
    assert len(single) == len(parts[0])
    for number, batch in enumerate(single):
        together = flat(part[number] for part in parts)
        if len(batch) >= world_size:
            assert sorted(together) == sorted(batch)
        else:  # fewer samples than ranks: some are repeated, so that each rank has one
            assert set(batch) <= set(together) and len(together) == world_size


@given(shape=shapes, start=st.integers(0, 70))
def test_the_rest_of_an_epoch_is_sharded_too(shape, start):
    total, world_size, batch_size, drop_last = shape
    sampler = RandomSampler(range(total))
    order = flat(shards(sampler, 1, 1)[0])
    parts = shards(sampler, world_size, batch_size, start=start, drop_last=drop_last)
    seen, rest = flat(flat(parts)), order[start:]
    assert len({len(part) for part in parts}) == 1
    if drop_last:
        whole = len(rest) - len(rest) % (batch_size * world_size)
        assert sorted(seen) == sorted(rest[:whole])
    else:
        assert set(seen) == set(rest)


def test_every_epoch_has_a_new_order_without_set_epoch():
    shard = shard_of(RandomSampler(range(100)), 5, 1, 2)
    first, second, third = list(shard), list(shard), list(shard)
    assert first != second and second != third and first != third


def test_set_epoch_restores_an_order_and_continues_from_there():
    shard = shard_of(RandomSampler(range(100)), 5, 1, 2)
    orders = [list(shard) for _ in range(3)]
    shard.set_epoch(1)
    assert [list(shard), list(shard)] == orders[1:]
    other_seed = shard_of(RandomSampler(range(100)), 5, 1, 2, seed=9)
    assert list(other_seed) != orders[0]


def test_a_start_is_used_once():
    shard = shard_of(SequentialSampler(range(10)), 1, 0, 2)
    shard.set_epoch(0, start=6)
    assert list(shard) == [6, 8]
    assert list(shard) == [0, 2, 4, 6, 8]


def test_drawing_an_order_leaves_the_random_streams_alone():
    shard = shard_of(RandomSampler(range(100)), 5, 0, 2)
    before = torch.get_rng_state(), random.getstate()
    list(shard)
    assert torch.equal(torch.get_rng_state(), before[0]) and random.getstate() == before[1]


def test_a_weighted_sampler_keeps_its_weights():
    weights = [0.0, 1.0, 0.0, 3.0]
    parts = shards(WeightedRandomSampler(weights, 4000), 2, 10)
    drawn = flat(flat(parts))
    assert len(drawn) == 4000
    assert set(drawn) == {1, 3}
    assert drawn.count(3) / 4000 == pytest.approx(0.75, abs=0.05)


class EveryThird(Sampler):
    def __init__(self, total):
        self.total, self.epoch = total, 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        return iter([(3 * position + self.epoch) % self.total for position in range(self.total // 3)])

    def __len__(self):
        return self.total // 3


def test_a_custom_sampler_is_kept_and_hears_of_the_epoch():
    assert flat(zip(*map(flat, shards(EveryThird(30), 2, 5)))) == list(range(0, 30, 3))
    assert flat(zip(*map(flat, shards(EveryThird(30), 2, 5, epoch=1)))) == list(range(1, 30, 3))


# ---- the evaluation shard


def shuffled_evaluation_order(with_generator):
    seed_everything(0)
    generator = torch.Generator().manual_seed(get_rank()) if with_generator else None
    loader = DataLoader(range(23), batch_size=3, shuffle=True, generator=generator)
    split_random_streams(0)
    return torch.cat(list(share_batches(loader))).tolist()


@pytest.mark.parametrize("with_generator", [False, True])
def test_a_shuffled_evaluation_loader_is_exact_although_the_ranks_streams_differ(ranks, with_generator):
    parts = ranks(2).run(shuffled_evaluation_order, with_generator)
    assert sorted(flat(parts)) == list(range(23))


# ---- loaders


class RandomNumbers(Dataset):
    """Sample i is i and a number from the random stream of whoever loads it."""

    def __init__(self, total):
        self.total = total

    def __len__(self):
        return self.total

    def __getitem__(self, index):
        return torch.tensor([float(index), torch.rand(()).item()], dtype=torch.float64)


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(10))


def collate(samples):
    return torch.tensor(samples)


def seed_by_worker(worker):
    random.seed(worker)
    np.random.seed(worker)
    torch.manual_seed(worker)


def test_outside_a_group_the_loader_itself_is_returned():
    loader = DataLoader(range(10), batch_size=2, shuffle=True)
    assert shard_loader(loader) is loader
    assert share_batches(loader) is loader
    stream = DataLoader(Stream(), batch_size=2)
    assert shard_loader(stream) is stream and share_batches(stream) is stream


def rebuilt_settings():
    extra = {"in_order": False} if hasattr(DataLoader(range(2)), "in_order") else {}
    expected = {
        "batch_size": 3,
        "num_workers": 2,
        "collate_fn": collate,
        "pin_memory": True,
        "drop_last": True,
        "timeout": 17,
        "prefetch_factor": 5,
        "persistent_workers": True,
        "pin_memory_device": "cuda:0",
        **extra,
    }
    data = range(20)
    train = shard_loader(DataLoader(data, shuffle=True, multiprocessing_context="spawn", **expected))
    kept = [
        name
        for name, value in expected.items()
        if getattr(train, name) != value or train.dataset is not data or not isinstance(train.sampler, ShardedSampler)
    ]
    context = train.multiprocessing_context
    evaluation = share_batches(DataLoader(data, batch_size=4, collate_fn=collate))
    kept += [] if (evaluation.batch_size, evaluation.collate_fn) == (4, collate) else ["evaluation"]
    # Whatever else a loader of a newer torch can be told must be known here before it can be carried over.
    known = {*expected, "dataset", "sampler", "batch_sampler", "generator", "in_order", "_of_all_ranks"}
    known |= {name for name in vars(train) if name.startswith("_")}
    known |= {"multiprocessing_context", "worker_init_fn"}
    return kept, context.get_start_method(), sorted(set(vars(train)) - known)


def test_all_settings_of_a_loader_are_kept(ranks):
    for result in ranks(2).run(rebuilt_settings):
        assert result == ([], "spawn", [])


def refusal(kind):
    loader = {
        "stream": lambda: DataLoader(Stream(), batch_size=2),
        "no batches": lambda: DataLoader(range(9), batch_size=None),
        "small": lambda: DataLoader(range(7), batch_size=4, drop_last=True),
        "empty": lambda: DataLoader([], batch_size=4),
        "one": lambda: DataLoader(range(1), batch_size=1),
    }[kind]()
    try:
        shard_loader(loader)
    except (TypeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("stream", "TypeError: cannot shard the IterableDataset Stream"),
        ("no batches", "TypeError: cannot shard a loader of range with batch_size=None"),
        ("small", "ValueError: the training set has 7 samples, fewer than one global batch of 8 (4 per rank x 2"),
        ("empty", "ValueError: the training set has 0 samples"),
        (
            "one",
            "ValueError: the training set has 1 samples, fewer than the 2 processes that would share them; start 1",
        ),
    ],
)
def test_a_loader_that_cannot_be_sharded_is_refused_on_every_rank(ranks, kind, expected):
    for message in ranks(2).run(refusal, kind):
        assert message.startswith(expected)


def test_a_dataset_smaller_than_one_batch_is_refused_in_one_process_too():
    with pytest.raises(ValueError, match=r"has 3 samples, fewer than one global batch of 4 .* use a smaller batch"):
        shard_loader(DataLoader(range(3), batch_size=4, drop_last=True))
    assert len(list(shard_loader(DataLoader(range(3), batch_size=4)))) == 1


def augmentation_stream(seed, num_workers, with_generator):
    seed_everything(seed)
    generator = torch.Generator().manual_seed(seed) if with_generator else None
    loader = DataLoader(
        RandomNumbers(12),
        batch_size=2,
        shuffle=True,
        generator=generator,
        drop_last=True,
        **loader_workers(num_workers),
    )
    loader = shard_loader(loader, seed=seed)
    split_random_streams(seed)
    samples = torch.cat(list(loader))
    return samples[:, 0].tolist(), samples[:, 1].tolist()


class Draws(Dataset):
    """Samples that are what python, numpy and torch draw for them."""

    def __len__(self):
        return 8

    def __getitem__(self, index):
        return torch.tensor([random.random(), np.random.rand(), torch.rand(()).item()])


def drawn_by_seeded_workers():
    loader = DataLoader(Draws(), batch_size=2, worker_init_fn=seed_by_worker, **loader_workers(1))
    return next(iter(shard_loader(loader))).tolist()


def test_workers_that_are_seeded_by_their_number_differ_by_rank(ranks):
    first, second = ranks(2).run(drawn_by_seeded_workers)
    (alone,) = ranks(1).run(drawn_by_seeded_workers)
    assert first == alone
    assert not {number for row in first for number in row} & {number for row in second for number in row}


def drawn_past_the_end():
    drawn = iter(distribute_loader(DataLoader(RandomNumbers(12), batch_size=2)))
    with pytest.raises(StopIteration) as raised:
        for _ in range(6):  # as many as one process has
            next(drawn)
    return str(raised.value)


def test_who_draws_too_many_batches_is_told_what_to_do(ranks):
    messages = ranks(2).run(drawn_past_the_end)
    assert all("RETROFIT_BATCH=global" in message for message in messages)


@pytest.mark.parametrize(("num_workers", "with_generator"), [(0, True), (2, False), (2, True)])
def test_ranks_do_not_repeat_each_others_augmentation(ranks, num_workers, with_generator):
    (first, noise), (second, other_noise) = ranks(2).run(augmentation_stream, 3, num_workers, with_generator)
    assert sorted(first + second) == list(range(12)), "the seed is common, so the order must be"
    assert len({*noise, *other_noise}) == 12


def test_augmentation_is_repeatable(ranks):
    assert ranks(2).run(augmentation_stream, 3, 0, False) == ranks(2).run(augmentation_stream, 3, 0, False)
