"""Batches that a script draws itself: each rank's samples of them, and the random numbers that are common."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

import retrofit.distributed as rd
from retrofit.distributed.data.batch import batches_in_use, weight_of


def drawn(seeds):
    torch.manual_seed(seeds[rd.get_rank()])
    random.seed(seeds[rd.get_rank()])
    np.random.seed(seeds[rd.get_rank()])
    tensor = rd.data.own_draw(torch.randint(100, (rd.data.batch_of_ranks(3),)))
    array = rd.data.own_draw(np.random.randint(100, size=rd.data.batch_of_ranks(3)))
    entries = rd.data.own_draw(random.sample(range(100), rd.data.batch_of_ranks(3)))
    first, second = rd.data.own_draw((torch.rand(6, 1, requires_grad=True), torch.rand(6)))
    assert first.requires_grad and first.is_leaf and not second.requires_grad
    return tensor.tolist(), array.tolist(), entries, first.flatten().tolist() + second.tolist()


def test_the_ranks_split_what_rank_0_has_drawn(ranks):
    shares = ranks(2).run(drawn, [7, 8])
    torch.manual_seed(7)
    random.seed(7)
    np.random.seed(7)
    whole = torch.randint(100, (6,)).tolist(), np.random.randint(100, size=6).tolist(), random.sample(range(100), 6)
    for kind in range(3):
        assert [shares[row % 2][kind][row // 2] for row in range(6)] == whole[kind]
    assert not set(shares[0][3]) & set(shares[1][3])


def test_alone_everything_stays_the_object_that_it_was():
    indices = torch.arange(4)
    assert rd.data.own_draw(indices) is indices and rd.data.own_part(indices) is indices
    assert rd.data.batch_of_ranks(5) == 5
    assert rd.data.draw_together(list, (1, 2)) == [1, 2]


def slices(total, batch):
    batches_in_use.clear()
    order = torch.arange(total)
    shares = []
    for start in range(0, total, batch):
        share = rd.data.own_part(order[start : start + batch])
        shares.append((share.tolist(), weight_of(share)))
    return shares


def test_a_last_batch_is_split_as_it_comes_and_counts_by_its_samples(ranks):
    shares = ranks(2).run(slices, 11, 4)
    assert [rows for rows, _ in shares[0]] == [[0, 2], [4, 6], [8, 10]]
    assert [rows for rows, _ in shares[1]] == [[1, 3], [5, 7], [9]]
    assert [weight for _, weight in shares[0]] == pytest.approx([1, 1, 4 / 3])
    assert [weight for _, weight in shares[1]] == pytest.approx([1, 1, 2 / 3])


def test_a_rank_without_a_sample_of_its_own_repeats_one_that_counts_nothing(ranks):
    shares = ranks(3).run(slices, 7, 6)
    assert [share[-1] for share in shares] == [([6], 3.0), ([6], 0.0), ([6], 0.0)]


def common_orders():
    torch.manual_seed(rd.get_rank())
    random.seed(rd.get_rank())
    order = rd.data.draw_together(torch.randperm, 8).tolist()
    entries = list(range(8))
    rd.data.draw_together(random.shuffle, entries)
    return (order, entries), (torch.rand(1).item(), random.random())


def test_an_order_is_common_and_what_is_drawn_next_is_not(ranks):
    (orders, *own), (same, *other) = ranks(2).run(common_orders)
    assert orders == same
    assert own != other
    torch.manual_seed(0)
    assert orders[0] == torch.randperm(8).tolist()


def streams():
    torch.manual_seed(3)
    rd.data.own_part(torch.arange(2))
    first = torch.rand(3).tolist()
    rd.data.own_part(torch.arange(2))
    return first + torch.rand(3).tolist()


def test_ranks_have_streams_of_their_own_which_start_once(ranks):
    first, second = ranks(2).run(streams)
    assert not set(first) & set(second)
    assert len(set(second)) == 6


def stages():
    batches_in_use.clear()
    for start in range(0, 5, 4):
        rd.data.own_part(torch.arange(5)[start : start + 4])
    for _ in range(3):
        share = rd.data.own_part(torch.arange(8))
    return weight_of(share), len(batches_in_use)


def test_the_last_batch_of_a_loop_that_has_ended_is_forgotten(ranks):
    assert ranks(2).run(stages) == [(1.0, 1)] * 2


def unequal():
    with pytest.raises(ValueError, match="as many entries as samples"):
        rd.data.own_part((torch.arange(3), torch.arange(4)))


def test_parts_of_unequal_lengths_are_an_error(ranks):
    ranks(2).run(unequal)


def of_both(total, size):
    order = rd.data.draw_together(torch.randperm, total)
    for start in range(0, total, rd.data.batch_of_ranks(size)):
        yield rd.data.own_part(order[start : start + rd.data.batch_of_ranks(size)])


def evaluated_between(total, size):
    torch.manual_seed(rd.get_rank())
    training = iter(of_both(total, size))
    first = len(next(training))
    whole = [rows.tolist() for rows in rd.data.whole_batches(of_both(total, size))]
    stopped = iter(rd.data.whole_batches(of_both(total, size)))
    next(stopped)
    return first, whole, [len(rows) for rows in training]


def test_an_evaluation_keeps_the_whole_batches_of_a_generator_that_trains_as_well(ranks):
    results = ranks(2).run(evaluated_between, 11, 4)
    assert results[0][1] == results[1][1]
    assert sorted(row for rows in results[0][1] for row in rows) == list(range(11)) and [
        len(rows) for rows in results[0][1]
    ] == [4, 4, 3]
    assert [(first, rest) for first, _, rest in results] == [(4, [2]), (4, [1])]


def batch_of_both(rows, first, size):
    return rd.data.own_part(rows[first : first + rd.data.batch_of_ranks(size)])


def evaluated_by_calls(size):
    rows = list(range(11))
    starts = range(0, len(rows), size)
    whole = [rd.data.whole_batches(batch_of_both)(rows, first, size) for first in starts]
    return whole, batch_of_both(rows, 0, size=size)


def test_an_evaluation_keeps_the_whole_batches_of_a_function_that_trains_as_well(ranks):
    expected = [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10]]
    assert ranks(2).run(evaluated_by_calls, 4) == [(expected, [0, 2, 4, 6]), (expected, [1, 3, 5, 7])]


def test_alone_whole_batches_are_the_object_that_they_were():
    rows = [torch.arange(4)]
    assert rd.data.whole_batches(rows) is rows
