"""Streams over several ranks: every sample once, equal numbers of steps, the order of one process."""

from __future__ import annotations

import random

import pytest
import torch
from run_program import run_python
from torch.utils.data import DataLoader, IterableDataset, get_worker_info
from torch.utils.data.datapipes.iter import IterableWrapper

import retrofit.distributed as rd
from retrofit.distributed.data.batch import weight_of
from retrofit.distributed.data.loaders import is_shard


class Stream(IterableDataset):
    """The numbers below `total`, in the order of the random numbers if `mixed`; each worker reads its own part."""

    def __init__(self, total, mixed=False, of_batches=0):
        self.total, self.mixed, self.of_batches = total, mixed, of_batches

    def __iter__(self):
        worker = get_worker_info()
        numbers = list(range(self.total))[worker.id :: worker.num_workers] if worker else list(range(self.total))
        if self.mixed:
            random.shuffle(numbers)
        size = self.of_batches
        yield from [torch.tensor(numbers[i : i + size]) for i in range(0, len(numbers), size)] if size else numbers


class SizedStream(Stream):
    def __len__(self):
        return self.total


class OwnOrder(Stream):
    """A stream with a random generator of its own that no seed reaches."""

    def __iter__(self):
        numbers = list(range(self.total))
        random.Random(rd.get_rank()).shuffle(numbers)
        return iter(numbers)


def epochs(stream, batch_size, workers=0, persistent=False, drop_last=False):
    """Return the batches of two epochs, with their weights."""
    options = {"num_workers": workers, "persistent_workers": persistent, "drop_last": drop_last}
    loader = DataLoader(stream, batch_size, **options)
    torch.manual_seed(3)
    random.seed(3)
    loader = rd.distribute_loader(loader)
    assert rd.distribute_loader(loader) is loader and is_shard(loader) == (rd.get_world_size() > 1)
    return [[(batch.tolist(), weight_of()) for batch in loader] for _ in range(2)]


def numbers_of(shares, epoch):
    return sorted(number for found in shares for batch, _ in found[epoch] for number in batch)


@pytest.mark.parametrize("world_size", [2, 3])
@pytest.mark.parametrize("mixed", [False, True])
def test_every_sample_is_drawn_once_in_an_epoch(ranks, world_size, mixed):
    shares = ranks(world_size).run(epochs, Stream(24, mixed), 2)
    for epoch in range(2):
        assert numbers_of(shares, epoch) == list(range(24))
        assert {len(found[epoch]) for found in shares} == {12 // world_size}
    first, second = shares[0]
    assert (first != second) == mixed


def test_the_batches_of_all_ranks_are_those_of_one_process(ranks):
    shares = ranks(2).run(epochs, Stream(24), 2)
    together = [sorted(a + b) for (a, _), (b, _) in zip(shares[0][0], shares[1][0])]
    assert together == [list(range(i, i + 4)) for i in range(0, 24, 4)]


@pytest.mark.parametrize("persistent", [False, True])
def test_each_worker_shares_what_it_reads(ranks, persistent):
    shares = ranks(2).run(epochs, Stream(24, True), 3, 2, persistent)
    for epoch in range(2):
        assert numbers_of(shares, epoch) == list(range(24))
    first, second = shares[0]
    assert first != second


def test_an_uneven_last_batch_counts_by_its_samples(ranks):
    shares = ranks(2).run(epochs, Stream(11), 4)
    assert [len(batch) for batch, _ in shares[0][0]] == [4, 2]
    assert [len(batch) for batch, _ in shares[1][0]] == [4, 1]
    assert [weight for _, weight in shares[0][0]] == [1.0, 4 / 3]


def test_a_rank_that_has_no_more_repeats_a_batch_that_counts_nothing(ranks):
    shares = ranks(2).run(epochs, Stream(9), 4)
    assert [weight for _, weight in shares[0][0]] == [1.0, 2.0]
    assert [weight for _, weight in shares[1][0]] == [1.0, 0.0]
    assert [batch for batch, _ in shares[0][0]] == [[0, 2, 4, 6], [8]]
    assert [batch for batch, _ in shares[1][0]] == [[1, 3, 5, 7], [1, 3, 5, 7]]


def test_with_drop_last_all_ranks_end_together(ranks):
    shares = ranks(2).run(epochs, Stream(15), 4, 0, False, True)
    assert [[len(batch) for batch, _ in found[0]] for found in shares] == [[4], [4]]


def test_a_stream_of_whole_batches_is_split_by_batches(ranks):
    shares = ranks(2).run(epochs, Stream(18, of_batches=4), None)
    assert [batch for batch, _ in shares[0][0]] == [[0, 1, 2, 3], [8, 9, 10, 11], [16, 17]]
    assert [batch for batch, _ in shares[1][0]][:2] == [[4, 5, 6, 7], [12, 13, 14, 15]]
    assert [weight for _, weight in shares[1][0]] == [1.0, 1.0, 0.0]


def test_fewer_samples_than_ranks_are_an_error(ranks):
    with pytest.raises(Exception, match=r"Stream has fewer samples than there are ranks \(2\)"):
        ranks(2).run(epochs, Stream(1), 2)


def length_of(total):
    return len(rd.distribute_loader(DataLoader(SizedStream(total), 4)))


def test_its_length_is_the_number_of_steps(ranks):
    assert ranks(2).run(length_of, 24) == [3, 3]
    assert ranks(1).run(length_of, 24) == [6]


def test_ranks_that_read_other_samples_are_an_error(ranks):
    with pytest.raises(Exception, match="the ranks read different samples from OwnOrder"):
        ranks(2).run(epochs, OwnOrder(12), 2)


def test_one_process_reads_what_it_read(ranks):
    ((first, second),) = ranks(1).run(epochs, Stream(9), 4)
    assert [batch for batch, _ in first] == [batch for batch, _ in second] == [[0, 1, 2, 3], [4, 5, 6, 7], [8]]


@pytest.mark.parametrize("workers", [0, 2])
def test_each_rank_has_its_part_of_a_data_pipe_in_training(ranks, workers):
    shares = ranks(2).run(epochs, IterableWrapper(range(24)).shuffle().sharding_filter(), 2, workers)
    for epoch in range(2):
        assert numbers_of(shares, epoch) == list(range(24))


EVALUATES_PIPE = """
import sys
from torch.utils.data import DataLoader
from torch.utils.data.datapipes.iter import IterableWrapper
import retrofit.distributed as rd

rd.setup_distributed()
loader = DataLoader(IterableWrapper(range(12)).shuffle().sharding_filter(), 4)
for _ in range(2):
    # one write for each line: the processes share their standard output
    sys.stdout.write(f"read {sorted(number for batch in loader for number in batch.tolist())}\\n")
rd.cleanup_distributed()
"""


def test_a_data_pipe_is_whole_in_every_process_elsewhere(tmp_path):
    script = tmp_path / "pipe.py"
    script.write_text(EVALUATES_PIPE)
    done = run_python("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(script))
    assert [line for line in done.stdout.splitlines() if "read" in line] == [f"read {list(range(12))}"] * 4, done.stderr
