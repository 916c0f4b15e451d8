"""Sums over ranks that travel while a step computes: the figures of a step as one collective that nothing waits for."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from ..failure.collective_calls import collective
from ..process.process_group import control_group, is_distributed


class PendingSum(NamedTuple):
    """Sums over ranks of a few numbers that are on their way; from `begin_sum`, for `finish_sum`."""

    sums: torch.Tensor  # float64, on the CPU
    work: Any  # of the process group; None outside one


@collective
def begin_sum(*values: float) -> PendingSum:
    """Begin to sum a few numbers over ranks; `finish_sum` returns the sums.

    Until then nothing waits, neither this rank nor what it computes on a GPU. Collective: every rank, as many numbers.
    """
    sums = torch.tensor([float(value) for value in values], dtype=torch.float64)
    work = dist.all_reduce(sums, group=control_group(), async_op=True) if is_distributed() else None
    return PendingSum(sums, work)


@collective
def finish_sum(pending: PendingSum) -> list[float]:
    """Return the sums that `begin_sum` has begun, also a second time. Collective: every rank."""
    if pending.work is not None:
        pending.work.wait()
    return pending.sums.tolist()
