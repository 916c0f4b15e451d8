"""Rows of a batch in hand: slices, picks and joins of a batch have the rows of their parts."""

from __future__ import annotations

import pytest
import torch
from traced_block import Events

from retrofit.verify.trace.computation.operators import OperatorTrace
from retrofit.verify.trace.randomness.rows import BatchRows

SEEDS = [10, 11, 12, 13, 14, 15]

READS = {
    "all": (lambda x: x * 2, SEEDS),
    "slice": (lambda x: x[2:4] * 2, [12, 13]),
    "every second": (lambda x: x[::2] + 1, [10, 12, 14]),
    "chunk": (lambda x: x.chunk(3)[1] + 1, [12, 13]),
    "chunk of a copy": (lambda x: (x + 1).split(4)[1] + 1, [14, 15]),
    "one row": (lambda x: x[3] + 1, [13]),
    "one row as a batch": (lambda x: x[3:4] + 1, [13]),
    "columns": (lambda x: x[:, 1:] + 1, SEEDS),
    "columns of a slice": (lambda x: x[1:3, 1:] + 1, [11, 12]),
    "transposed": (lambda x: x.t() + 1, SEEDS),
    "another view": (lambda x: x.view(3, 2, 4) + 1, SEEDS),
    "interleaved": (lambda x: x.view(3, 2, 4).transpose(0, 1).reshape(6, 4) + 1, [10, 12, 14, 11, 13, 15]),
    "interleaved and back": (
        lambda x: x.view(3, 2, 4).transpose(0, 1).reshape(6, 4).view(2, 3, 4).transpose(0, 1).reshape(6, 4) + 1,
        SEEDS,
    ),
    "repeated": (lambda x: x.unsqueeze(1).expand(6, 3, 4) + 1, SEEDS),
    "one column": (lambda x: x[:, 2] + 1, SEEDS),
    "index": (lambda x: x[torch.tensor([4, 0])] + 1, [14, 10]),
    "mask": (lambda x: x[torch.tensor([True, False] * 3)] + 1, [10, 12, 14]),
    "index_select": (lambda x: x.index_select(0, torch.tensor([5, 5])) + 1, [15, 15]),
    "flip": (lambda x: x.flip(0) + 1, SEEDS[::-1]),
    "roll": (lambda x: x.roll(1, 0) + 1, [15, 10, 11, 12, 13, 14]),
    "two views": (lambda x: torch.cat([x, x + 1]) + 1, SEEDS),
    "parts joined": (lambda x: torch.cat([x[4:], x[:1]]) + 1, [14, 15, 10]),
    "copied": (lambda x: torch.zeros(6, 4).copy_(x) + 1, SEEDS),
}


@pytest.mark.parametrize("name", READS)
def test_an_operator_takes_the_rows_in_hand_that_it_reads(name: str) -> None:
    read, expected = READS[name]
    rows, batch = BatchRows(), torch.zeros(6, 4)
    rows.add(batch, SEEDS)
    rows.leave()
    with OperatorTrace(Events(), True, rows, rows.following, rows.keys):
        read(batch)
    assert rows() == expected


def test_a_buffer_that_is_filled_again_has_the_rows_of_its_content() -> None:
    rows, buffer = BatchRows(), torch.zeros(2, 4)
    batches = [torch.zeros(2, 4), torch.zeros(2, 4)]
    with OperatorTrace(Events(), True, rows, rows.following, rows.keys):
        for batch, seeds in zip(batches, ([1, 2], [3, 4])):
            rows.add(batch, seeds)
            buffer.copy_(batch)
            rows.leave()
            buffer.add(1)
            assert rows() == seeds


def test_a_row_draws_the_same_in_a_part_and_in_the_whole_batch() -> None:
    def drawn(parts: list[list[int]]) -> torch.Tensor:
        rows, batch = BatchRows(), torch.arange(6.0).view(6, 1).repeat(1, 4)
        rows.add(batch, SEEDS)
        with OperatorTrace(Events(), True, rows, rows.following, rows.keys):
            first = torch.randn_like(batch)
            return first + torch.cat([torch.rand_like(batch[start:end]) for start, end in parts])

    assert torch.equal(drawn([[0, 6]]), drawn([[0, 2], [2, 3], [3, 6]]))


@pytest.mark.parametrize("second", [[10, 11], [12, 10]])
def test_a_sample_of_two_batches_in_hand_is_drawn_for_in_each(second: list[int]) -> None:
    rows, batches = BatchRows(), [torch.zeros(2, 4), torch.zeros(2, 4)]
    keys = []
    with OperatorTrace(Events(), True, rows, rows.following, rows.keys):
        rows.add(batches[0], [10, 11])
        rows.add(batches[1], second)
        for batch in (*batches, batches[0]):
            batch.add(1)
            torch.rand(2)
            keys.append(rows.keys())
            torch.rand(1)
    assert keys == [[1, 1], [1, 1], [4, 4]]
