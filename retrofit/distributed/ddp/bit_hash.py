"""A 64-bit hash of a tensor's bits, the same on every device."""

from __future__ import annotations

from functools import lru_cache

import torch

CHUNK = 1 << 18  # one pseudo-random vector of this length serves tensors of any size
_GOLDEN_RATIO = 0x9E3779B97F4A7C15 - (1 << 64)
_FIRST_MULTIPLIER = 0xBF58476D1CE4E5B9 - (1 << 64)
_SECOND_MULTIPLIER = 0x94D049BB133111EB - (1 << 64)


def bit_hash(tensor: torch.Tensor) -> int:
    """Return the sum modulo 2**64 of the tensor's words times odd numbers, which any one changed word changes."""
    return int(bit_hash_later(tensor)) % 2**64


def bit_hash_later(tensor: torch.Tensor) -> torch.Tensor:
    """Return the hash as an int64 tensor without dimensions on the tensor's device, which nothing has waited for."""
    flat = tensor.detach().contiguous().reshape(-1)
    flat = flat.view(torch.uint8) if flat.dtype != torch.bool else flat.to(torch.uint8)
    missing = -flat.numel() % 8
    if missing or flat.storage_offset() % 8:
        flat = torch.cat([flat, flat.new_zeros(missing)])
    return weighted_sum(flat.view(torch.int64), _odd_numbers(str(tensor.device))) + tensor.numel()


def weighted_sum(flat: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Return the sum of element (r, c) of `flat`, seen as rows of CHUNK elements, times weights[r] * weights[c]."""
    num_rows = flat.numel() // CHUNK
    rows, tail = flat[: num_rows * CHUNK].view(num_rows, CHUNK), flat[num_rows * CHUNK :]
    if flat.is_cuda and flat.dtype == torch.int64:  # cuBLAS multiplies no integers
        per_row, total = (rows * weights).sum(1), (tail * weights[: len(tail)]).sum()
        return (per_row * weights[:num_rows]).sum() + total * weights[num_rows]
    total = torch.dot(tail, weights[: len(tail)])
    return torch.dot(torch.mv(rows, weights), weights[:num_rows]) + total * weights[num_rows]


@lru_cache(maxsize=64)
def _odd_numbers(device: str) -> torch.Tensor:
    """Return pseudo-random odd numbers (the finalizer of splitmix64): no relation between them lets small words cancel.

    With numbers that grow evenly, two rows of token ids often have the same sum.
    """
    numbers = torch.arange(1, CHUNK + 1, dtype=torch.int64, device=device) * _GOLDEN_RATIO
    for shift, multiplier in ((30, _FIRST_MULTIPLIER), (27, _SECOND_MULTIPLIER)):
        numbers = (numbers ^ _shifted(numbers, shift)) * multiplier  # wraps around
    return (numbers ^ _shifted(numbers, 31)) | 1


def _shifted(numbers: torch.Tensor, bits: int) -> torch.Tensor:
    return (numbers >> bits) & ((1 << (64 - bits)) - 1)  # torch's own shift repeats the sign
