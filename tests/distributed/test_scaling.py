"""How a batch is shared out, and what that does to the learning rate."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrofit.distributed import BatchPlan, plan_batch, scale_lr

sizes = st.integers(1, 64)


def test_per_gpu_batches_add_up():
    plan = plan_batch(16, world_size=4, accum_steps=2)
    assert plan == BatchPlan(micro_batch=16, world_size=4, accum_steps=2, reference_batch=16)
    assert plan.global_batch == 128


def test_a_global_batch_is_shared_out():
    plan = plan_batch(16, world_size=4, accum_steps=2, batch="global")
    assert (plan.micro_batch, plan.global_batch, plan.reference_batch) == (2, 16, 16)


def test_the_error_of_an_uneven_global_batch():
    with pytest.raises(ValueError) as caught:
        plan_batch(100, world_size=8, batch="global")
    assert str(caught.value) == "global batch (100) is not divisible by world size (8); use 96 or 104"


def test_the_error_names_the_accumulation_too():
    with pytest.raises(ValueError) as caught:
        plan_batch(100, world_size=4, accum_steps=2, batch="global")
    expected = "global batch (100) is not divisible by world size (4) x accum_steps (2); use 96 or 104"
    assert str(caught.value) == expected


def test_the_error_never_proposes_an_empty_batch():
    with pytest.raises(ValueError, match=r"world size \(8\); use 8$"):
        plan_batch(5, world_size=8, batch="global")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"batch_size": 0}, "batch size must be at least 1, got 0"),
        ({"batch_size": 4, "accum_steps": 0}, "accum_steps must be at least 1, got 0"),
        ({"batch_size": 4, "world_size": -1}, "world size must be at least 1, got -1"),
        ({"batch_size": 4, "batch": "total"}, "batch must be 'per_gpu' or 'global', got 'total'"),
    ],
)
def test_bad_sizes_are_refused(arguments, text):
    with pytest.raises(ValueError, match=text):
        plan_batch(**arguments)


@given(batch_size=sizes, world_size=sizes, accum_steps=st.integers(1, 8))
def test_every_plan_adds_up_or_is_refused_with_values_that_work(batch_size, world_size, accum_steps):
    per_gpu = plan_batch(batch_size, world_size, accum_steps)
    assert per_gpu.micro_batch == per_gpu.reference_batch == batch_size
    assert per_gpu.global_batch == batch_size * world_size * accum_steps
    parts = world_size * accum_steps
    if batch_size % parts == 0:
        plan = plan_batch(batch_size, world_size, accum_steps, "global")
        assert plan.global_batch == plan.reference_batch == batch_size
        assert plan.micro_batch * parts == batch_size
    else:
        with pytest.raises(ValueError) as caught:
            plan_batch(batch_size, world_size, accum_steps, "global")
        for proposal in str(caught.value).split("; use ")[1].split(" or "):
            assert plan_batch(int(proposal), world_size, accum_steps, "global").global_batch == int(proposal)


@pytest.mark.parametrize(("rule", "expected"), [("linear", 4e-3), ("sqrt", 2e-3), ("none", 1e-3)])
def test_learning_rate_for_four_times_the_batch(rule, expected):
    assert scale_lr(1e-3, global_batch=64, reference_batch=16, rule=rule) == pytest.approx(expected, rel=1e-12)


def test_the_linear_rule_is_the_default():
    assert scale_lr(1e-3, 32, 16) == 2e-3


def test_an_unknown_rule_is_refused():
    with pytest.raises(ValueError, match="'linear', 'sqrt' or 'none', got 'cubic'"):
        scale_lr(1e-3, 32, 16, "cubic")


@given(lr=st.floats(1e-8, 10), batch_size=sizes, rule=st.sampled_from(["linear", "sqrt", "none"]))
def test_one_process_keeps_its_learning_rate_to_the_bit(lr, batch_size, rule):
    plan = plan_batch(batch_size)
    assert scale_lr(lr, plan.global_batch, plan.reference_batch, rule) == lr


@given(batch_size=sizes, world_size=sizes, accum_steps=st.integers(1, 8))
def test_a_global_batch_keeps_its_learning_rate(batch_size, world_size, accum_steps):
    plan = plan_batch(batch_size * world_size * accum_steps, world_size, accum_steps, "global")
    assert scale_lr(1e-3, plan.global_batch, plan.reference_batch) == 1e-3


@given(ratio=st.integers(1, 1000))
def test_two_sqrt_steps_are_one_linear_step(ratio):
    twice = scale_lr(scale_lr(1.0, ratio, 1, "sqrt"), ratio, 1, "sqrt")
    assert math.isclose(twice, scale_lr(1.0, ratio, 1, "linear"), rel_tol=1e-12)
