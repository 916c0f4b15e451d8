"""Fingerprints of tensors: a hash for bit equality, a norm and a projection for how far two tensors are apart."""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch

CHUNK = 1 << 18  # one pseudo-random vector of this length serves tensors of any size
_ODD_MULTIPLIER = 0x9E3779B97F4A7C15 - (1 << 64)


def norm_and_projection(tensor: torch.Tensor) -> list[float]:
    """Return the 2-norm and the product with a fixed vector of random signs, in float64.

    The difference of two projections estimates the norm of the difference: its variance over random signs is
    ||a - b||^2 (Johnson and Lindenstrauss with one dimension), where equal norms alone prove little.
    """
    flat = tensor.detach().reshape(-1)
    flat = flat.double() if not flat.is_complex() else torch.view_as_real(flat).reshape(-1).double()
    return torch.stack([flat.norm(), _weighted_sum(flat, _signs(str(flat.device)))]).tolist()


def bit_hash(tensor: torch.Tensor) -> int:
    """Return a 64-bit hash of the tensor's bits: a sum of products with odd numbers modulo 2**64.

    Integer sums do not depend on the order of summation, so the hash is the same on every device; a change of one
    word always changes it.
    """
    return (int(_weighted_sum(_words(tensor), _odd_numbers(str(tensor.device)))) + tensor.numel()) % 2**64


def bit_hashes(tensors: Sequence[torch.Tensor]) -> list[str]:
    return [f"{bit_hash(tensor):016x}" for tensor in tensors]


def joint_hash(hashes: Sequence[str]) -> str:
    return hashlib.blake2b("".join(hashes).encode(), digest_size=8).hexdigest()


def content_hash(item: Any) -> str:
    """Return a hash of a dataset's item, whatever it is made of."""
    digest = hashlib.blake2b(digest_size=8)
    _feed(digest, item)
    return digest.hexdigest()


def _feed(digest: Any, item: Any) -> None:
    if isinstance(item, torch.Tensor):
        digest.update(f"{item.dtype}{tuple(item.shape)}{bit_hash(item):016x}".encode())
    elif isinstance(item, dict):
        for key, value in item.items():
            digest.update(repr(key).encode())
            _feed(digest, value)
    elif isinstance(item, (list, tuple)):
        digest.update(str(len(item)).encode())
        for value in item:
            _feed(digest, value)
    elif hasattr(item, "__array_interface__"):  # numpy arrays, PIL images
        description = item.__array_interface__
        data = item.tobytes() if hasattr(item, "tobytes") else repr(description).encode()
        digest.update(f"{description['typestr']}{description['shape']}".encode() + data)
    else:
        try:
            digest.update(pickle.dumps(item))
        except Exception:  # what cannot be pickled has a repr, without its address
            digest.update(repr(type(item)).encode())


def _weighted_sum(flat: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Return the sum of element (r, c) of `flat`, seen as rows of CHUNK elements, times weights[r] * weights[c]."""
    num_rows = flat.numel() // CHUNK
    rows, tail = flat[: num_rows * CHUNK].view(num_rows, CHUNK), flat[num_rows * CHUNK :]
    if flat.is_cuda and flat.dtype == torch.int64:  # cuBLAS multiplies no integers
        per_row = (rows * weights).sum(1)
        total = (tail * weights[: len(tail)]).sum()
        return (per_row * weights[:num_rows]).sum() + total * weights[num_rows]
    total = torch.dot(tail, weights[: len(tail)])
    return torch.dot(torch.mv(rows, weights), weights[:num_rows]) + total * weights[num_rows]


def _words(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor's bytes as 64-bit integers, the last one filled up with zeros."""
    flat = tensor.detach().contiguous().reshape(-1)
    flat = flat.view(torch.uint8) if flat.dtype != torch.bool else flat.to(torch.uint8)
    missing = -flat.numel() % 8
    if missing or flat.storage_offset() % 8:
        flat = torch.cat([flat, flat.new_zeros(missing)])
    return flat.view(torch.int64)


@lru_cache(maxsize=64)
def _signs(device: str) -> torch.Tensor:
    generator = torch.Generator().manual_seed(20)
    bits = torch.randint(0, 2, (CHUNK,), generator=generator, dtype=torch.int64)
    return (bits * 2 - 1).to(device=device, dtype=torch.float64)


@lru_cache(maxsize=64)
def _odd_numbers(device: str) -> torch.Tensor:
    numbers = torch.arange(CHUNK, dtype=torch.int64, device=device) * 2 + 1
    return numbers * _ODD_MULTIPLIER  # wraps around: spreads small changes over all bits, stays odd
