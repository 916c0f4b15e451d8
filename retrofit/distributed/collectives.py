"""Values of all ranks: sums, means, objects, decisions. The identity outside a group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from .failure.collective_calls import collective
from .process.process_group import control_group, get_rank, get_world_size, group_for, is_distributed

__all__ = ["broadcast_object", "gather_objects", "on_any_rank", "raise_together", "reduce_dict"]

Value = TypeVar("Value")


@collective
def reduce_tensor_sum(tensor: torch.Tensor) -> torch.Tensor:
    """Return the sum over ranks of `tensor`, a new tensor, exact for int64. Collective: every rank."""
    if not is_distributed():
        return tensor
    total = tensor.detach().clone()
    if total.device.type == "cpu" and dist.get_backend() == "nccl":  # a group that the script has made: no CPU side
        total = total.cuda()
    dist.all_reduce(total, group=group_for(total))
    return total.to(tensor.device)


def reduce_mean(tensor: torch.Tensor) -> torch.Tensor:
    """Return the mean over ranks of `tensor` (same shape on every rank), a new tensor. Collective: every rank."""
    return reduce_tensor_sum(tensor) / get_world_size() if is_distributed() else tensor


def reduce_sum(values: Sequence[float]) -> list[float]:
    """Return the sums over ranks of a few numbers, in float64 on the CPU. Collective: every rank, the same length."""
    return reduce_tensor_sum(torch.tensor([float(value) for value in values], dtype=torch.float64)).tolist()


def reduce_dict(values: Mapping[str, Any], average: bool = True) -> dict[str, Any]:
    """Return `values` averaged (or summed) over ranks: numbers or one-element tensors. Collective: every rank.

    A tensor comes back as a tensor of its own dtype and device. Raises ValueError when the ranks hold different keys,
    or for a tensor with more than one element.
    """
    if not is_distributed():
        return dict(values)
    for name, value in values.items():
        if isinstance(value, torch.Tensor) and value.numel() != 1:
            raise ValueError(
                f"reduce_dict takes numbers and one-element tensors, got {name!r} of shape {tuple(value.shape)}; "
                "use sum_over_ranks for it"
            )
    of_ranks = gather_objects({name: float(values[name]) for name in sorted(values)})
    if any(list(of_rank) != list(of_ranks[0]) for of_rank in of_ranks):
        raise ValueError(
            f"reduce_dict needs the same keys on every rank, got {[*map(list, of_ranks)]}; fill in missing ones"
        )
    result: dict[str, Any] = {}
    for name, value in values.items():
        total = sum(of_rank[name] for of_rank in of_ranks)
        answer: Any = total / get_world_size() if average else total
        if isinstance(value, torch.Tensor):
            dtype = value.dtype if value.is_floating_point() or not average else torch.float32
            answer = torch.tensor(answer, dtype=dtype, device=value.device).reshape(value.shape)
        result[name] = answer
    return result


def on_any_rank(condition: Any) -> bool:
    """Return whether a condition holds on any rank, so that all decide the same. Collective: every rank."""
    return reduce_sum([bool(condition)])[0] > 0


@collective
def broadcast_object(value: Value, source: int = 0) -> Value:
    """Return rank `source`'s `value` on every rank: a decision is made once. Collective: every rank."""
    if not is_distributed():
        return value
    box = [value if get_rank() == source else None]
    dist.broadcast_object_list(box, src=source, group=control_group())
    return box[0]  # type: ignore[return-value]


@collective
def gather_objects(value: Value) -> list[Value]:
    """Return the values of all ranks, in rank order, on every rank. Collective: every rank."""
    if not is_distributed():
        return [value]
    gathered: list[Any] = [None] * get_world_size()
    dist.all_gather_object(gathered, value, group=control_group())
    return gathered


def raise_together(error: BaseException | None) -> None:
    """Raise on every rank when any rank has an error, so that none waits for the others. Collective: every rank.

    The failing rank raises its own error; the others a RuntimeError that names it.
    """
    messages = gather_objects(None if error is None else f"{type(error).__name__}: {error}")
    if error is not None:
        raise error
    for rank, message in enumerate(messages):
        if message is not None:
            raise RuntimeError(f"rank {rank} failed: {message}")
