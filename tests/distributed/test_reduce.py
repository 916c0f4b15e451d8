"""Values of all ranks brought together."""

from __future__ import annotations

import time

import pytest
import torch
from torch import nn
from torch.nn import functional

from retrofit.distributed import DDPWrapper, get_rank, get_world_size, reduce_dict
from retrofit.distributed.collectives import (
    broadcast_object,
    gather_objects,
    on_any_rank,
    raise_together,
    reduce_mean,
    reduce_sum,
    reduce_tensor_sum,
)
from retrofit.distributed.job import begin_sum, finish_sum
from retrofit.distributed.loss import batch_count, rank_share

LARGE = 2**53 + 1  # not a float64


def test_outside_a_group_everything_is_the_identity():
    tensor = torch.tensor([1, 2])
    values = {"loss": torch.tensor(1.5), "count": 3}
    assert reduce_sum([1, 2.5]) == finish_sum(begin_sum(1, 2.5)) == [1.0, 2.5]
    assert reduce_mean(tensor) is tensor and reduce_tensor_sum(tensor) is tensor
    result = reduce_dict(values)
    assert result == values and result is not values
    assert on_any_rank(1 > 0) is True and on_any_rank(0) is False
    assert broadcast_object("x") == "x" and gather_objects("x") == ["x"]
    raise_together(None)
    with pytest.raises(KeyError):
        raise_together(KeyError("x"))


def sums():
    rank = get_rank()
    counts = torch.tensor([LARGE, rank], dtype=torch.int64)
    floats = torch.tensor([1.0, float(rank)])
    result = (
        reduce_sum([rank, 0.5]),
        reduce_tensor_sum(counts).tolist(),
        reduce_mean(floats).tolist(),
        [on_any_rank(rank == 1), on_any_rank(rank == 3)],
    )
    assert counts.tolist() == [LARGE, rank] and floats.tolist() == [1.0, rank], "the inputs must stay"
    return result


def test_sums_and_means(ranks):
    for result in ranks(3).run(sums):
        assert result == ([3.0, 1.5], [3 * LARGE, 3], [1.0, 1.0], [True, False])


def sums_on_their_way():
    """Two sums are begun, others are made meanwhile, and the first is asked for last, twice."""
    rank = get_rank()
    first, second = begin_sum(rank, 0.5), begin_sum(LARGE)
    between = reduce_sum([rank + 1])
    return between, finish_sum(second), finish_sum(first), finish_sum(first)


def test_sums_may_be_asked_for_later_and_in_another_order(ranks):
    for result in ranks(3).run(sums_on_their_way):
        assert result == ([6.0], [3 * float(LARGE)], [3.0, 1.5], [3.0, 1.5])


def late_rank():
    """Rank 1 begins a second late; return the seconds that rank 0 waited in each call."""
    if get_rank() == 1:
        time.sleep(1.0)
    started = time.perf_counter()
    pending = begin_sum(1.0)
    begun = time.perf_counter()
    finish_sum(pending)
    return begun - started, time.perf_counter() - begun


def test_a_rank_waits_for_a_late_one_when_it_asks_for_the_sum(ranks):
    begin, finish = ranks(2).run(late_rank)[0]
    assert begin < 0.5 < finish, "begin_sum must not wait"


def reduced_dict(average):
    rank = get_rank()
    values = {
        "loss": torch.tensor(1.0 + rank, dtype=torch.float32, requires_grad=True),
        "half": torch.tensor([2.0 * rank], dtype=torch.bfloat16),
        "double": torch.tensor(0.1, dtype=torch.float64),
        "count": torch.tensor(10 + rank, dtype=torch.int64),
        "number": rank,
    }
    values = dict(sorted(values.items(), reverse=bool(rank)))  # the order of keys must not matter
    before = {name: (id(value), str(value)) for name, value in values.items()}
    result = reduce_dict(values, average=average)
    assert {name: (id(value), str(value)) for name, value in values.items()} == before, "the input was changed"
    return {
        name: (value.tolist(), str(value.dtype), tuple(value.shape)) if torch.is_tensor(value) else value
        for name, value in result.items()
    }


def test_reduce_dict_averages(ranks):
    for result in ranks(2).run(reduced_dict, True):
        assert result == {
            "loss": (1.5, "torch.float32", ()),
            "half": ([1.0], "torch.bfloat16", (1,)),
            "double": (0.1, "torch.float64", ()),
            "count": (10.5, "torch.float32", ()),  # an average of counts is no count
            "number": 0.5,
        }


def test_reduce_dict_sums(ranks):
    for result in ranks(2).run(reduced_dict, False):
        assert result == {
            "loss": (3.0, "torch.float32", ()),
            "half": ([2.0], "torch.bfloat16", (1,)),
            "double": (0.2, "torch.float64", ()),
            "count": (21, "torch.int64", ()),
            "number": 1,
        }


def test_different_keys_are_an_error_on_every_rank(ranks):
    for text in ranks(2).run(keys_error):
        assert "same keys on every rank, got [['loss'], ['lorm', 'loss']]; fill in missing ones" in text


def keys_error():
    try:
        reduce_dict({"loss": 1.0, **({"lorm": 2.0} if get_rank() else {})})
    except ValueError as error:
        return str(error)
    return ""


def large_tensor_error():
    try:
        reduce_dict({"confusion": torch.zeros(3, 3)})
    except ValueError as error:
        return str(error)
    return ""


def test_a_large_tensor_is_refused_with_its_shape(ranks):
    for text in ranks(2).run(large_tensor_error):
        assert "'confusion' of shape (3, 3); use sum_over_ranks" in text


def decisions():
    rank = get_rank()
    return broadcast_object({"from": rank}), broadcast_object(rank, source=1), gather_objects((rank, "x" * rank))


def test_decisions_are_made_once(ranks):
    gathered = [(0, ""), (1, "x"), (2, "xx")]
    assert ranks(3).run(decisions) == [({"from": 0}, 1, gathered)] * 3


# ---- the global mean


def batch_of(rank=None):
    """Two images of 100 pixels with 10 and 90 valid ones; one of them, or both."""
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(2, 4, 100, generator=generator)
    labels = torch.randint(0, 3, (2, 100), generator=generator)
    labels[0, 10:] = 255
    labels[1, 90:] = 255
    part = slice(None) if rank is None else slice(rank, rank + 1)
    return features[part], labels[part]


def classifier():
    torch.manual_seed(1)
    return nn.Conv1d(4, 3, 1)


def gradient(use_global_mean):
    model = DDPWrapper(classifier())
    features, labels = batch_of(get_rank() if get_world_size() > 1 else None)
    logits = model(features)
    if use_global_mean:
        valid = batch_count(int((labels != 255).sum()))
        loss = functional.cross_entropy(logits, labels, ignore_index=255, reduction="sum") / rank_share(valid)
    else:
        loss = functional.cross_entropy(logits, labels, ignore_index=255)
    loss.backward()
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


def test_global_mean_is_the_single_process_gradient_and_the_mean_of_means_is_not(ranks):
    expected = gradient(use_global_mean=False)  # one process: torch's own mean over the valid pixels
    for actual in ranks(2).run(gradient, True):
        assert (actual - expected).abs().max() <= 1e-6
    for mean_of_means in ranks(2).run(gradient, False):
        assert (mean_of_means - expected).norm() / expected.norm() > 0.1
    assert (gradient(use_global_mean=True) - expected).abs().max() <= 1e-6


# ---- errors


def raise_on(failing):
    error = LookupError(f"lost on {get_rank()}") if get_rank() in failing else None
    try:
        raise_together(error)
    except Exception as raised:
        return type(raised).__name__, str(raised)
    return "none", ""


def test_an_error_of_one_rank_is_raised_on_all(ranks):
    other = ("RuntimeError", "rank 1 failed: LookupError: lost on 1")
    assert ranks(3).run(raise_on, [1]) == [other, ("LookupError", "lost on 1"), other]


def test_each_failing_rank_raises_its_own_error(ranks):
    results = ranks(2).run(raise_on, [0, 1])
    assert results == [("LookupError", "lost on 0"), ("LookupError", "lost on 1")]


def test_without_an_error_nothing_is_raised(ranks):
    assert ranks(2).run(raise_on, []) == [("none", "")] * 2
