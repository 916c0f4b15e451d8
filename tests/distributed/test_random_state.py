"""Random streams: seeded alike, kept apart, saved and put back."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from retrofit.distributed.data.random_state import (
    get_rng_state,
    mix_seed,
    seed_everything,
    seeded,
    set_rng_state,
    split_random_streams,
)


@pytest.fixture(autouse=True)
def _own_streams():
    before = get_rng_state()
    yield
    set_rng_state(before)


def draw():
    return random.random(), float(np.random.rand()), torch.rand(3).tolist(), float(np.random.randn())


def test_a_seed_fixes_every_stream():
    seed_everything(7)
    first = draw()
    seed_everything(7)
    assert draw() == first
    seed_everything(8)
    assert all(new != old for new, old in zip(draw(), first))


@pytest.mark.parametrize("seed", [0, 2**32, 2**62 - 1])
def test_large_seeds_are_accepted(seed):
    seed_everything(seed)
    assert len(draw()) == 4


def test_streams_continue_where_they_were_saved():
    seed_everything(1)
    np.random.randn()  # leaves a cached second gaussian behind, part of the state
    state = get_rng_state()
    expected = [draw() for _ in range(3)]
    set_rng_state(state)
    assert [draw() for _ in range(3)] == expected


def test_the_state_survives_a_checkpoint_file(tmp_path):
    state = get_rng_state()
    torch.save(state, tmp_path / "state.pt")
    expected = draw()
    draw()
    set_rng_state(torch.load(tmp_path / "state.pt", weights_only=True))
    assert draw() == expected


def test_a_seeded_block_is_repeatable_and_leaves_no_trace():
    seed_everything(1)
    state = get_rng_state()
    expected = draw()
    set_rng_state(state)
    with seeded(5):
        first = draw()
    assert draw() == expected
    with seeded(5):
        assert draw() == first


def test_a_seeded_block_that_fails_puts_the_streams_back():
    seed_everything(1)
    expected = draw()
    seed_everything(1)
    with pytest.raises(KeyError), seeded(5):
        raise KeyError
    assert draw() == expected


@given(st.lists(st.integers(-(2**40), 2**70), min_size=1, max_size=4))
def test_mixed_seeds_are_valid_and_repeatable(parts):
    assert 0 <= mix_seed(*parts) < 2**62
    assert mix_seed(*parts) == mix_seed(*parts)


def test_nearby_parts_give_different_seeds():
    seeds = {mix_seed(first, second) for first in range(100) for second in range(100)}
    assert len(seeds) == 100 * 100


def test_one_process_keeps_its_random_stream():
    seed_everything(3)
    expected = draw()
    seed_everything(3)
    split_random_streams(3)
    assert draw() == expected


def draw_before_and_after_split(seed):
    seed_everything(seed)
    common = draw()
    seed_everything(seed)
    split_random_streams(seed)
    return common, draw()


def test_ranks_agree_until_the_streams_are_split(ranks):
    (common, first), (also_common, second), (_, third) = ranks(3).run(draw_before_and_after_split, 3)
    assert common == also_common == first, "rank 0 keeps its stream"
    assert all(len({a, b, c}) == 3 for a, b, c in zip(map(str, first), map(str, second), map(str, third)))
