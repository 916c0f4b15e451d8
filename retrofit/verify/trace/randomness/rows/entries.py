"""The tensors of a batch: those with a row for each sample, and those of one sample, as the boxes of a picture are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

MOST_PARTS = 1000  # of a batch that are looked at


def tensors_in(batch: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors of a batch, in containers and in objects of the script."""
    return (tensor for tensor, _ in tensors_of_samples(batch, 0))


def tensors_of_samples(batch: Any, num_samples: int) -> Iterator[tuple[torch.Tensor, bool]]:
    """Yield the tensors of a batch, and of each whether it is of one sample."""
    waiting, seen = [(batch, False)], 0
    while waiting and seen < MOST_PARTS:
        (part, is_of_one), seen = waiting.pop(), seen + 1
        if isinstance(part, torch.Tensor):
            yield part, is_of_one
        else:
            is_of_one = is_of_one or _has_an_entry_per_sample(part, num_samples)
            waiting += [(entry, is_of_one) for entry in _entries(part)]


def _has_an_entry_per_sample(part: Any, num_samples: int) -> bool:
    """Return whether a list has an entry for each sample: they are of one kind, and have not a row for each sample."""
    if not isinstance(part, (list, tuple)) or len(part) != num_samples or num_samples < 2:
        return False
    first = _kind(part[0])
    if any(_kind(entry) != first for entry in part[1:]):
        return False
    return any(not tensor.dim() or len(tensor) != num_samples for tensor in tensors_in(part))


def _kind(part: Any) -> Any:
    """Return what the entries of a list for the samples have in common."""
    if isinstance(part, torch.Tensor):
        return part.dtype, part.dim()
    if isinstance(part, Mapping):
        return type(part), [(key, _kind(value)) for key, value in part.items()]
    return type(part)


def _entries(part: Any) -> list[Any]:
    if isinstance(part, Mapping):
        return list(part.values())
    if isinstance(part, (list, tuple)):
        return list(part)
    has_attributes = hasattr(part, "__dict__") and not isinstance(part, type) and not callable(part)
    return list(vars(part).values()) if has_attributes else []
