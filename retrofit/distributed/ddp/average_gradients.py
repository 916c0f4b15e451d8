"""Average over ranks the gradients that a finished backward pass has left, where DDP's own reduction did not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

CHUNK = 6_553_600  # numbers that travel at once: 25 MiB of float32, as DDP's buckets
_NONE, _DENSE, _SPARSE = 0, 1, 2


def average_gradients(
    parameters: Sequence[nn.Parameter], group: Any = None, noted: Sequence[bool] | None = None
) -> tuple[list[bool], list[bool], list[bool]]:
    """Give every parameter the mean over ranks of its gradient; return which of them have a gradient on any rank.

    A rank without a gradient counts as zeros. A parameter without a gradient on every rank keeps None, as in one
    process, so that no optimizer moves it. What is a mean over ranks already stays it. `noted` is said of each
    parameter; the other results are of which any rank said it, and of which all did. Collective: every rank of
    `group`, the same parameters.
    """
    number, said = len(parameters), [int(value) for value in noted or [False] * len(parameters)]
    own = [*(_kind(parameter) for parameter in parameters), *said, *(-value for value in said)]
    found = all_reduce_small(own, dist.ReduceOp.MAX, group)
    kinds, by_any, not_by_all = found[:number], found[number : 2 * number], found[2 * number :]
    used = [(parameter, kind) for parameter, kind in zip(parameters, kinds) if kind != _NONE]
    for parameter, kind in used:
        if parameter.grad is None:
            parameter.grad = _no_gradient(parameter, kind == _SPARSE)
        elif kind == _SPARSE and not parameter.grad.is_sparse:
            parameter.grad = parameter.grad.to_sparse(1)
    world_size = dist.get_world_size(group)
    for gradients in _chunks([parameter for parameter, kind in used if kind == _DENSE]):
        flat = torch.cat([gradient.reshape(-1) for gradient in gradients]).div_(world_size)
        dist.all_reduce(flat, group=group)
        for gradient, part in zip(gradients, flat.split([gradient.numel() for gradient in gradients])):
            gradient.copy_(part.view_as(gradient))
    for parameter, kind in used:
        if kind == _SPARSE:
            assert parameter.grad is not None
            gradient = parameter.grad.div(world_size).coalesce()
            dist.all_reduce(gradient, group=group)
            parameter.grad = gradient
    return [kind != _NONE for kind in kinds], [value > 0 for value in by_any], [value < 0 for value in not_by_all]


def all_reduce_small(numbers: Sequence[int], operation: Any, group: Any = None) -> list[int]:
    """Return int64 numbers combined over ranks, in one collective that waits for no GPU where the group has a CPU side.

    Collective: every rank of `group`, the same length.
    """
    packed = torch.tensor(numbers, dtype=torch.int64)
    packed = packed.cuda() if dist.get_backend(group) == "nccl" else packed
    dist.all_reduce(packed, operation, group=group)
    return packed.tolist()


def _kind(parameter: nn.Parameter) -> int:
    if parameter.grad is None:
        return _NONE
    return _SPARSE if parameter.grad.is_sparse else _DENSE


def _no_gradient(parameter: nn.Parameter, is_sparse: bool) -> torch.Tensor:
    """Return a gradient of zeros; a sparse one has no rows."""
    if not is_sparse:
        return torch.zeros_like(parameter, requires_grad=False)
    place, dtype = parameter.device, parameter.dtype
    rows = torch.empty((1, 0), dtype=torch.int64, device=place)
    values = torch.empty((0, *parameter.shape[1:]), dtype=dtype, device=place)
    return torch.sparse_coo_tensor(rows, values, parameter.shape)


def _chunks(parameters: Sequence[nn.Parameter]) -> Iterator[list[torch.Tensor]]:
    """Yield gradients of one type and device in lists of about CHUNK numbers."""
    chunk: list[torch.Tensor] = []
    size = 0
    for gradient in (parameter.grad for parameter in parameters):
        assert gradient is not None
        fits = not chunk or (gradient.dtype, gradient.device) == (chunk[0].dtype, chunk[0].device)
        if chunk and (not fits or size >= CHUNK):
            yield chunk
            chunk, size = [], 0
        chunk.append(gradient)
        size += gradient.numel()
    if chunk:
        yield chunk
