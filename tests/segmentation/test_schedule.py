from __future__ import annotations

import argparse
import math

import pytest
import torch

from segmentation.schedule import build_scheduler, learning_rate_factor


def rates(
    epochs: int = 4, warmup_epoch: float = 1.0, sched: str = "cosine", steps_per_epoch: int = 5, done_steps: int = 0
) -> list[float]:
    """Return the learning rate of every step that is left, read from the optimizer as training does."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=123.0)
    args = argparse.Namespace(epochs=epochs, warmup_epoch=warmup_epoch, sched=sched)
    scheduler = build_scheduler(optimizer, 2.0, args, steps_per_epoch, done_steps)
    used = []
    for _ in range(epochs * steps_per_epoch - done_steps):
        assert scheduler.get_last_lr()[0] == optimizer.param_groups[0]["lr"]
        used.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return used


def test_warm_up_is_linear_and_reaches_the_peak() -> None:
    assert rates()[:6] == pytest.approx([0.4, 0.8, 1.2, 1.6, 2.0, 2.0])


def test_no_warm_up_starts_at_the_peak() -> None:
    assert rates(warmup_epoch=0)[0] == 2.0


def test_half_an_epoch_of_warm_up() -> None:
    assert rates(warmup_epoch=0.4)[:3] == pytest.approx([1.0, 2.0, 2.0])


@pytest.mark.parametrize(("sched", "half"), [("cosine", 0.5), ("poly", 0.5**0.9)])
def test_decay_from_one_to_zero(sched: str, half: float) -> None:
    assert learning_rate_factor(10, 110, 10, sched) == 1.0
    assert learning_rate_factor(60, 110, 10, sched) == pytest.approx(half)
    assert learning_rate_factor(110, 110, 10, sched) == pytest.approx(0.0, abs=1e-12)
    factors = [learning_rate_factor(step, 110, 10, sched) for step in range(10, 111)]
    assert all(later < earlier for earlier, later in zip(factors, factors[1:]))


@pytest.mark.parametrize("sched", ["cosine", "poly"])
def test_steps_after_the_end_stay_at_zero(sched: str) -> None:
    factor = learning_rate_factor(500, 110, 10, sched)  # poly of a negative base would be complex
    assert isinstance(factor, float) and math.isclose(factor, 0.0, abs_tol=1e-12)


@pytest.mark.parametrize("sched", ["cosine", "poly"])
@pytest.mark.parametrize("done_steps", [0, 1, 4, 5, 6, 13, 19])
def test_resumed_schedule_repeats_the_uninterrupted_one(sched: str, done_steps: int) -> None:
    assert rates(sched=sched, done_steps=done_steps) == rates(sched=sched)[done_steps:]


def test_warm_up_longer_than_the_training_does_not_divide_by_zero() -> None:
    assert rates(epochs=1, warmup_epoch=3.0) == pytest.approx([2.0 * step / 15 for step in range(1, 6)])


def test_the_rate_left_in_the_optimizer_does_not_matter() -> None:
    """A checkpoint restores the optimizer's old rate; the new one (another world size, another --lr) must win."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=9.0)
    optimizer.param_groups[0]["initial_lr"] = 7.0
    args = argparse.Namespace(epochs=2, warmup_epoch=0.0, sched="cosine")
    scheduler = build_scheduler(optimizer, 0.5, args, 10, done_steps=10)
    assert scheduler.get_last_lr()[0] == pytest.approx(0.25)
