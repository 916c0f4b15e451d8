"""Fingerprints of tensors: a hash for bit equality, a norm and a projection for how far two tensors are apart."""

from __future__ import annotations

import hashlib
import io
import pickle
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch

from retrofit.distributed.ddp.bit_hash import CHUNK, bit_hash, weighted_sum
from retrofit.verify.trace.events import Fingerprint


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor of which every rank holds a shard (FSDP2) in one piece, any other as it is. Then collective."""
    full_tensor = getattr(tensor, "full_tensor", None)
    return tensor if full_tensor is None else full_tensor()


def norm_and_projection(tensor: torch.Tensor) -> Fingerprint:
    """Return the 2-norm and the product with a fixed vector of random signs, in float64.

    The difference of two projections estimates the norm of the difference: its variance over random signs is
    ||a - b||^2 (Johnson and Lindenstrauss with one dimension), where equal norms alone prove little.
    """
    flat = tensor.detach().reshape(-1)
    flat = flat.double() if not flat.is_complex() else torch.view_as_real(flat).reshape(-1).double()
    return torch.stack([flat.norm(), weighted_sum(flat, _signs(str(flat.device)))]).tolist()


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
        digest.update(f"{item.dtype}{tuple(item.shape)}".encode() + _content(item))
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
            digest.update(_pickled(item))
        except Exception:  # what cannot be pickled has a repr, without its address
            digest.update(repr(type(item)).encode())


class _ByContent(pickle.Pickler):
    """Pickles what is in tensors and arrays, not where they are: objects of libraries hold some (graphs, boxes)."""

    def persistent_id(self, item: Any) -> str | None:
        is_array = isinstance(item, torch.Tensor) or hasattr(item, "__array_interface__")
        return content_hash(item) if is_array else None


def _pickled(item: Any) -> bytes:
    stream = io.BytesIO()
    _ByContent(stream).dump(item)
    return stream.getvalue()


def _content(tensor: torch.Tensor) -> bytes:
    """Return the bytes of a tensor; a hash of its bits where these are not to be had (torch without NumPy)."""
    try:
        return bytes(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    except (RuntimeError, TypeError):
        return f"{bit_hash(tensor):016x}".encode()


@lru_cache(maxsize=64)
def _signs(device: str) -> torch.Tensor:
    generator = torch.Generator().manual_seed(20)
    bits = torch.randint(0, 2, (CHUNK,), generator=generator, dtype=torch.int64)
    return (bits * 2 - 1).to(device=device, dtype=torch.float64)
