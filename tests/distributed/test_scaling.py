"""The sizes of batches over all ranks, and the learning rate that follows from them."""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrofit.distributed import learning_rate
from retrofit.distributed.data import loaders, micro_batch, samples_per_step
from retrofit.distributed.learning_rate import scaled_lr
from retrofit.distributed.process.options import forget_options, set_options

sizes = st.integers(1, 64)
steps = st.integers(1, 8)


@contextmanager
def ranks(world_size: int, batch: str = "per_gpu", rule: str = "linear") -> Iterator[None]:
    """Let the functions take this process for one of so many; real groups train in test_converted.py."""
    set_options(argparse.Namespace(batch=batch, lr_scale=rule))
    try:
        with (
            mock.patch.object(loaders, "get_world_size", lambda: world_size),
            mock.patch.object(learning_rate, "get_world_size", lambda: world_size),
            mock.patch.object(loaders, "require_group", lambda caller: None),
        ):
            yield
    finally:
        forget_options()


def test_per_gpu_batches_add_up():
    with ranks(4):
        assert (micro_batch(16, 2), samples_per_step(16, 2)) == (16, 128)


def test_a_global_batch_is_split():
    with ranks(4, "global"):
        assert (micro_batch(16, 2), samples_per_step(16, 2)) == (2, 16)


@pytest.mark.parametrize(
    ("world_size", "arguments", "text"),
    [
        (8, (100,), "global batch (100) is not divisible by world size (8); use 96 or 104"),
        (4, (100, 2), "global batch (100) is not divisible by world size (4) x accum_steps (2); use 96 or 104"),
        (8, (5,), "global batch (5) is not divisible by world size (8); use 8"),
        (1, (0,), "batch size must be at least 1, got 0"),
        (1, (4, 0), "accum_steps must be at least 1, got 0"),
    ],
)
def test_bad_sizes_are_refused(world_size, arguments, text):
    with ranks(world_size, "global"), pytest.raises(ValueError) as caught:
        micro_batch(*arguments)
    assert str(caught.value) == text


@given(batch_size=sizes, world_size=sizes, accum_steps=steps)
def test_every_size_adds_up_or_is_refused_with_values_that_work(batch_size, world_size, accum_steps):
    with ranks(world_size):
        assert micro_batch(batch_size, accum_steps) == batch_size
        assert samples_per_step(batch_size, accum_steps) == batch_size * world_size * accum_steps
    parts = world_size * accum_steps
    with ranks(world_size, "global"):
        if batch_size % parts == 0:
            assert samples_per_step(batch_size, accum_steps) == batch_size
            assert micro_batch(batch_size, accum_steps) * parts == batch_size
        else:
            with pytest.raises(ValueError) as caught:
                micro_batch(batch_size, accum_steps)
            for proposal in str(caught.value).split("; use ")[1].split(" or "):
                assert samples_per_step(int(proposal), accum_steps) == int(proposal)


@pytest.mark.parametrize(("rule", "expected"), [("linear", 4e-3), ("sqrt", 2e-3), ("none", 1e-3)])
@pytest.mark.parametrize(("world_size", "accum_steps"), [(4, 1), (2, 2), (1, 4)])
def test_learning_rate_for_four_times_the_batch(rule, expected, world_size, accum_steps):
    with ranks(world_size, rule=rule):
        assert scaled_lr(1e-3, accum_steps) == pytest.approx(expected, rel=1e-12)
        assert scaled_lr([1e-3], accum_steps) == [pytest.approx(expected, rel=1e-12)]


def test_the_linear_rule_is_the_default():
    with mock.patch.object(learning_rate, "get_world_size", lambda: 2):
        assert scaled_lr(1e-3) == 2e-3


@given(lr=st.floats(1e-8, 10), rule=st.sampled_from(["linear", "sqrt", "none"]))
def test_one_process_keeps_its_learning_rate_to_the_bit(lr, rule):
    with ranks(1, rule=rule):
        assert scaled_lr(lr) == lr


@given(world_size=sizes, accum_steps=steps)
def test_a_global_batch_keeps_its_learning_rate(world_size, accum_steps):
    with ranks(world_size, "global"):
        assert scaled_lr(1e-3, accum_steps) == 1e-3


@given(world_size=st.integers(1, 1000))
def test_two_sqrt_steps_are_one_linear_step(world_size):
    with ranks(world_size, rule="sqrt"):
        twice = scaled_lr(scaled_lr(1.0))
    with ranks(world_size):
        assert math.isclose(twice, scaled_lr(1.0), rel_tol=1e-12)
