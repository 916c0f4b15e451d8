"""Rows of a batch in hand: slices, picks and joins of a batch have the rows of their parts."""

from __future__ import annotations

import pytest
import torch
from traced_block import Events

from retrofit.verify.trace.computation.operators import OperatorTrace
from retrofit.verify.trace.randomness.rows.batch_rows import BatchRows
from retrofit.verify.trace.randomness.rows.entries import tensors_in, tensors_of_samples
from retrofit.verify.trace.randomness.rows.parts import Mixing

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


WEIGHT = torch.nn.Parameter(torch.ones(()))


def by_element(x: torch.Tensor) -> torch.Tensor:
    mine = x.clone()
    for i in range(len(x)):
        x[i] = 0.7 * x[i] + 0.3 * mine[-1 - i]
    return x


def without_gradient(x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return by_element(x)


# What is computed of the last batch and of this one, both of six samples with six features, and is trained on.
MIXINGS = {
    "by element": lambda last, x: by_element(x).sum() * WEIGHT,
    "by element, without gradients": lambda last, x: without_gradient(x).sum() * WEIGHT,
    "halves": lambda last, x: (x[:3] * 0.7 + x[3:] * 0.3).sum() * WEIGHT,
    "where": lambda last, x: torch.where(torch.ones(6) > 0, x[0], x[4]) * WEIGHT,
    "stacked": lambda last, x: torch.stack([x[0].lerp(x[1], 0.3), x[2].lerp(x[5], 0.3)]).mean(1) * WEIGHT,
    "with samples of the last batch": lambda last, x: (x[2] + last[3]).sum() * WEIGHT,
}
NO_MIXINGS = {
    "a running loss": lambda last, x: last.square().mean() + (x.square().mean() * WEIGHT).detach(),
    "a meter": lambda last, x: last.sum().add_(x.sum()),
    "a running scale": lambda last, x: x / (last.square().sum() + x.square().sum()) * WEIGHT,
    "a running scale, by lerp": lambda last, x: x / last.square().mean().lerp(x.square().mean(), 0.1) * WEIGHT,
    "running means of the features": lambda last, x: (x - last.mean(0).lerp(x.mean(0), 0.1)) * WEIGHT,
    "features of both halves": lambda last, x: (x[:, :3].mean(0) - x[:, 3:].mean(0)) * WEIGHT,
    "the last predictions": lambda last, x: (0.9 * last + 0.1 * x) * WEIGHT,
    "a running loss of single samples": lambda last, x: (x[0] * WEIGHT).detach() + (x[1] * WEIGHT).detach(),
    "a look at two samples": lambda last, x: (x[0] - x[1]).abs().sum(),
    "copied and compared": lambda last, x: (x.clone()[1] - x[1]) * WEIGHT,
}


def mixings(compute, batches: list[torch.Tensor], seeds: list[list[int]]) -> list[Mixing]:
    rows, found = BatchRows(), []
    rows.on_mixed = found.append
    with OperatorTrace(Events(), True, rows, rows.following, rows.keys):
        for batch, own in zip(batches, seeds):
            rows.add(batch, own)
        compute(*batches)
    return found


@pytest.mark.parametrize("name", [*MIXINGS, *NO_MIXINGS])
def test_samples_are_mixed_where_the_data_of_two_are_computed_with_and_trained_on(name: str) -> None:
    batches = [torch.rand(6, 6), torch.rand(6, 6)]
    found = mixings({**MIXINGS, **NO_MIXINGS}[name], batches, [[20, 21, 22, 23, 24, 25], SEEDS])
    assert bool(found) == (name in MIXINGS)
    assert all(one.where.startswith("test_trace_rows.py:") for one in found)


def test_scalars_of_batches_of_one_sample_are_not_mixed() -> None:
    scale = NO_MIXINGS["a running scale"]
    assert not mixings(scale, [torch.rand(1, 6), torch.rand(1, 6)], [[20], [10]])


def test_rows_that_are_written_one_by_one_are_still_those_of_the_batch() -> None:
    rows, batch = BatchRows(), torch.rand(6, 4)
    rows.add(batch, SEEDS)
    with OperatorTrace(Events(), True, rows, rows.following, rows.keys):
        by_element(batch)
        batch.add(1)
        assert rows() == SEEDS
        batch[1:3].add(1)
        assert rows() == [11, 12]


def boxes(number: int) -> torch.Tensor:
    return torch.rand(number, 2)


# Six pictures; what is computed of two columns of the same tensor mixes no samples, whatever number of rows it has.
OF_ONE = {
    "targets of a detector": lambda: [{"boxes": boxes(n), "labels": torch.zeros(n)} for n in (1, 6, 3, 0, 6, 2)],
    "in a dictionary": lambda: {"boxes": [boxes(n) for n in (3, 6, 3, 3, 3, 3)], "image": torch.rand(6, 3, 8, 8)},
    "next to the pictures": lambda: (torch.rand(6, 3, 8, 8), tuple(boxes(n) for n in (3, 6, 3, 1, 3, 3))),
    "with as many entries": lambda: (torch.rand(6, 3, 8, 8), [torch.rand(3, 2) for _ in range(6)]),
    "pairs of tensors": lambda: [(boxes(n), torch.zeros(n)) for n in (6, 6, 3, 6, 6, 6)],
}


def columns_of(batch: object) -> torch.Tensor:
    found = [one for one in tensors_in(batch) if one.dim() == 2]
    return torch.cat([(one * 2)[:, 0] * 8 + one[:, 1] for one in found])


@pytest.mark.parametrize("name", OF_ONE)
def test_two_columns_of_one_sample_are_not_two_samples(name: str) -> None:
    rows, batch, weight = BatchRows(), OF_ONE[name](), torch.ones((), requires_grad=True)
    found: list[Mixing] = []
    rows.on_mixed = found.append
    rows.add(batch, SEEDS)
    with OperatorTrace(Events(), True, rows, rows.following, rows.keys):
        (columns_of(batch) * weight).sum().backward()
    assert not found


def test_pictures_of_a_list_that_are_stacked_are_rows() -> None:
    rows, pictures = BatchRows(), [torch.rand(3, 8) for _ in SEEDS]
    rows.add(pictures, SEEDS)
    with OperatorTrace(Events(), True, rows, rows.following, rows.keys):
        torch.stack(pictures)[2:4].add(1)
    assert rows() == [12, 13]


def test_fields_of_a_batch_of_two_are_not_entries_of_its_samples() -> None:
    fields = torch.zeros(2, 3, 8, 8), [{"boxes": boxes(1)}, {"boxes": boxes(2)}]
    assert [is_of_one for tensor, is_of_one in tensors_of_samples(fields, 2) if tensor.dim() == 4] == [False]
    assert [is_of_one for tensor, is_of_one in tensors_of_samples(fields, 2) if tensor.dim() == 2] == [True, True]
    pair = torch.zeros(2, 3), torch.zeros(2)
    assert not any(is_of_one for _, is_of_one in tensors_of_samples(pair, 2))
