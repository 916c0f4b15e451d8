"""Epochs that can be resumed: what follows a saved position is what would have followed."""

from __future__ import annotations

import random
from itertools import chain, islice

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Dataset

from retrofit.distributed.checkpoint.checkpoint_files import restore_position
from retrofit.distributed.checkpoint.epochs import ResumableEpochs
from retrofit.distributed.collectives import gather_objects
from retrofit.distributed.data.random_state import get_rng_state, seed_everything, set_rng_state, split_random_streams
from retrofit.distributed.data.sharding import loader_workers, shard_loader


class RandomNumbers(Dataset):
    """Sample i is i and a number from the random stream of whoever loads it."""

    def __len__(self):
        return 24

    def __getitem__(self, index):
        return torch.tensor([float(index), torch.rand(()).item()], dtype=torch.float64)


def make_epochs(num_workers=0, accum_steps=1):
    loader = DataLoader(RandomNumbers(), batch_size=2, shuffle=True, drop_last=True, **loader_workers(num_workers))
    return ResumableEpochs(shard_loader(loader), accum_steps)


def train(steps, limit=None):
    """Return each step's batches with a number that the training step itself drew (dropout)."""
    return [
        ([batch.tolist() for batch in batches], torch.rand(()).item(), random.random())
        for batches in islice(steps, limit)
    ]


def saved(epochs):
    """Return the position as a checkpoint holds it."""
    return epochs.state_dict(), gather_objects(epochs.rng_state())


def interrupt_and_resume(num_workers, num_done, accum_steps=1):
    """Return the rest of epoch 1 and epoch 2, uninterrupted and resumed behind `num_done` steps of epoch 1."""
    seed_everything(5)
    split_random_streams(5)
    epochs = make_epochs(num_workers, accum_steps)
    train(epochs.steps())
    steps = epochs.steps()
    train(steps, num_done)
    position = saved(epochs)
    expected = train(steps) + train(epochs.steps())

    seed_everything(77)  # a new process has other streams, and a loader of its own
    resumed = make_epochs(num_workers, accum_steps)
    assert resumed.resume(*position) == {}
    assert (resumed.epoch, resumed.step) == (1, num_done)
    actual = train(resumed.steps()) + train(resumed.steps())
    assert (resumed.epoch, resumed.step) == (epochs.epoch, epochs.step) == (3, 0)
    return expected, actual


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("num_done", [0, 5, 12])
def test_a_resumed_epoch_is_bit_identical(num_workers, num_done):
    expected, actual = interrupt_and_resume(num_workers, num_done)
    assert len(expected) == 12 - num_done + 12
    assert actual == expected


def test_a_resumed_epoch_is_bit_identical_under_accumulation():
    expected, actual = interrupt_and_resume(0, 2, accum_steps=5)
    assert len(expected) == 0 + 2  # 12 batches are 2 steps of 5; both were done
    assert actual == expected


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_resumed_epoch_is_bit_identical_on_two_ranks(ranks, num_workers):
    for expected, actual in ranks(2).run(interrupt_and_resume, num_workers, 2):
        assert len(expected) == 6 - 2 + 6
        assert actual == expected


def test_a_position_saved_in_a_resumed_epoch_can_be_resumed_too():
    epochs = make_epochs()
    steps = epochs.steps()
    train(steps, 3)
    first = saved(epochs)
    train(steps, 4)
    expected_rest = train(steps)
    again = make_epochs()
    again.resume(*first)
    steps = again.steps()
    train(steps, 4)
    second = saved(again)
    assert train(steps) == expected_rest
    third = make_epochs()
    third.resume(*second)
    assert train(third.steps()) == expected_rest


def fifty_samples(batch_size, accum_steps=1):
    loader = DataLoader(range(50), batch_size=batch_size, shuffle=True, drop_last=True)
    return ResumableEpochs(shard_loader(loader, seed=4), accum_steps)


def samples(steps, limit=None):
    return [int(sample) for batches in islice(steps, limit) for batch in batches for sample in batch]


def stop_after(num_steps, batch_size):
    epochs = fifty_samples(batch_size)
    seen = samples(epochs.steps(), num_steps)
    return seen, saved(epochs)


def continue_from(position, batch_size, accum_steps):
    epochs = fifty_samples(batch_size, accum_steps)
    changes = epochs.resume(*position)
    step = epochs.step
    return samples(epochs.steps()), changes, step, epochs.steps_per_epoch


@pytest.mark.parametrize(("batch_size", "accum_steps"), [(5, 1), (1, 1), (2, 2), (1, 5)])
def test_another_world_size_sees_only_the_rest(ranks, batch_size, accum_steps):
    stopped = ranks(3).run(stop_after, 3, 4)
    seen = list(chain.from_iterable(part for part, _ in stopped))
    assert len(seen) == 36
    continued = ranks(2).run(continue_from, stopped[0][1], batch_size, accum_steps)
    rest = list(chain.from_iterable(part for part, *_ in continued))
    global_batch = 2 * batch_size * accum_steps
    assert len(set(seen + rest)) == len(seen) + len(rest)
    assert len(rest) == 14 // global_batch * global_batch, "whole steps of what is left"
    for _, changes, step, steps_per_epoch in continued:
        assert changes["world_size"] == (3, 2)
        assert changes["global_batch"] == (12, global_batch)
        assert step == steps_per_epoch - (50 // global_batch - -(-36 // global_batch))


def test_one_process_continues_after_the_same_number_of_samples(ranks):
    position = ranks(2).run(stop_after, 2, 5)[0][1]
    epochs = fifty_samples(5)
    changes = epochs.resume(*position)
    assert changes["process_group"] == (True, False)
    assert len(samples(epochs.steps())) == 30


def test_whole_steps_only_and_the_position_while_training():
    epochs = make_epochs(accum_steps=5)
    assert (epochs.steps_per_epoch, epochs.global_batch) == (2, 10)
    positions = [(epochs.epoch, epochs.step, epochs.global_step, len(batches)) for batches in epochs.steps()]
    assert positions == [(0, 1, 1, 5), (0, 2, 2, 5)]
    assert (epochs.epoch, epochs.step, epochs.global_step) == (1, 0, 2)


@settings(max_examples=25, deadline=None)
@given(num_done=st.integers(0, 12), seed=st.integers(0, 2**40))
def test_resuming_anywhere_continues_the_streams(num_done, seed):
    before = get_rng_state()
    try:
        seed_everything(seed)
        epochs = make_epochs()
        steps = epochs.steps()
        train(steps, num_done)
        position = saved(epochs)
        expected = train(steps)
        again = make_epochs()
        again.resume(*position)
        assert train(again.steps()) == expected
    finally:
        set_rng_state(before)


class Early(DataLoader):
    """Ends after five of its twelve batches."""

    def __iter__(self):
        return islice(super().__iter__(), 5)


def test_a_loader_that_ends_early_ends_the_epoch():
    epochs = ResumableEpochs(Early(RandomNumbers(), batch_size=2), accum_steps=2)
    assert [len(window) for window in epochs.steps()] == [2, 2]
    assert (epochs.epoch, epochs.step, epochs.global_step) == (1, 0, 2)


def test_steps_of_short_epochs_are_counted_after_a_resume():
    epochs = ResumableEpochs(Early(RandomNumbers(), batch_size=2))
    list(epochs.steps())
    resumed = ResumableEpochs(Early(RandomNumbers(), batch_size=2))
    resumed.resume(epochs.state_dict(), [epochs.rng_state()])
    assert resumed.global_step == epochs.global_step == 5


def test_samples_keep_being_counted_under_another_layout(capsys):
    epochs = make_epochs()
    train(epochs.steps(), 4)
    assert epochs.samples == 4 * 2
    position, rng_states = saved(epochs)
    content = {"position": position, "rng_states": rng_states}
    same, other = make_epochs(), make_epochs(accum_steps=2)
    restore_position(same, content, samples=epochs.samples)
    assert same.samples == 8 and capsys.readouterr().out == ""
    restore_position(other, content, samples=epochs.samples)
    assert "notice: resumed with global_batch 2 -> 4, accum_steps 1 -> 2" in capsys.readouterr().out
    assert (other.step, other.samples) == (2, 8)
    train(other.steps(), 1)
    assert other.samples == 8 + 4
