"""Fingerprints: any change of a tensor shows, and the distance of two tensors can be estimated from theirs."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import Dataset

from retrofit.verify.trace.computation.fingerprint import CHUNK, bit_hash, content_hash, norm_and_projection

DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.int64, torch.int32, torch.uint8, torch.bool]
SIZES = [1, 7, 8, 1000, CHUNK - 1, CHUNK, CHUNK + 3, 3 * CHUNK]


def numbers(size, dtype):
    values = torch.randint(0, 2, (size,)) if dtype == torch.bool else torch.randint(0, 100, (size,))
    return values.to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", SIZES)
def test_a_change_of_one_element_changes_the_hash(size, dtype):
    tensor = numbers(size, dtype)
    for position in {0, size // 2, size - 1}:
        changed = tensor.clone()
        changed[position] = not changed[position] if dtype == torch.bool else changed[position] + 1
        assert bit_hash(changed) != bit_hash(tensor)


def test_swapped_elements_change_the_hash():
    tensor = torch.arange(2.0 * CHUNK + 10)
    for a, b in [(0, 1), (0, CHUNK), (CHUNK, 2 * CHUNK), (5, 2 * CHUNK + 9)]:
        swapped = tensor.clone()
        swapped[[a, b]] = tensor[[b, a]]
        assert bit_hash(swapped) != bit_hash(tensor)


@pytest.mark.parametrize("hashed", [bit_hash, content_hash], ids=["bit_hash", "content_hash"])
def test_rows_of_small_numbers_have_hashes_of_their_own(hashed):
    rows = [[(start + step * k) % 39 for k in range(17)] for start in range(39) for step in range(1, 39)]
    assert len({hashed(torch.tensor(row)) for row in rows}) == len({tuple(row) for row in rows})


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_content_of_masks_is_told_apart(dtype):
    masks = torch.arange(2**12)[:, None].bitwise_right_shift(torch.arange(12)).bitwise_and(1).to(dtype)
    assert len({content_hash(mask) for mask in masks}) == 2**12


def test_the_hash_is_of_the_values_not_of_the_memory():
    tensor = torch.randn(33, 65)
    assert bit_hash(tensor.t().contiguous().t()) == bit_hash(tensor)
    assert bit_hash(torch.cat([torch.zeros(1), tensor.flatten()])[1:]) == bit_hash(tensor)
    assert bit_hash(torch.zeros(4)) != bit_hash(torch.zeros(5))


def test_zero_and_minus_zero_differ_in_bits():
    assert bit_hash(torch.tensor([0.0])) != bit_hash(torch.tensor([-0.0]))


@pytest.mark.parametrize("size", SIZES)
def test_the_norm_is_the_2_norm(size):
    tensor = torch.randn(size, dtype=torch.float64)
    assert norm_and_projection(tensor)[0] == pytest.approx(float(tensor.norm()), rel=1e-12)


def test_projections_estimate_the_distance():
    torch.manual_seed(0)
    tensor = torch.randn(2 * CHUNK + 5, dtype=torch.float64)
    estimates = []
    for _ in range(100):
        step = torch.randn_like(tensor) * 1e-6
        difference = norm_and_projection(tensor + step)[1] - norm_and_projection(tensor)[1]
        estimates.append((difference / float(step.norm())) ** 2)
    assert sum(estimates) / len(estimates) == pytest.approx(1, rel=0.5)  # sd of the mean of 100 chi-squares: 0.14
    assert min(estimates) > 0


@pytest.mark.parametrize("make", [lambda: (torch.ones(3), {"a": [1, 2.5, "x"]}, None), lambda: b"bytes"])
def test_equal_contents_have_equal_hashes(make):
    assert content_hash(make()) == content_hash(make())


def test_different_contents_have_different_hashes():
    items = [torch.ones(3), torch.ones(3).double(), torch.zeros(3), (torch.ones(3), 1), [1, 2], {"a": 1}, {"b": 1}, "a"]
    assert len({content_hash(item) for item in items}) == len(items)


class Unpicklable(Dataset):
    def __reduce__(self):
        raise TypeError("no")


def test_an_object_that_cannot_be_pickled_still_has_a_hash():
    assert content_hash(Unpicklable()) == content_hash(Unpicklable())
