"""A 64-bit hash of a tensor's bits, the same on every device."""

from __future__ import annotations

from functools import lru_cache

import torch

CHUNK = 1 << 18  # one pseudo-random vector of this length serves tensors of any size
_ODD_MULTIPLIER = 0x9E3779B97F4A7C15 - (1 << 64)


def bit_hash(tensor: torch.Tensor) -> int:
    """Return the sum modulo 2**64 of the tensor's words times odd numbers, which any changed word changes."""
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
    numbers = torch.arange(CHUNK, dtype=torch.int64, device=device) * 2 + 1
    return numbers * _ODD_MULTIPLIER  # wraps around: spreads small changes over all bits, stays odd
