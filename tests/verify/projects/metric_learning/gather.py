"""Rows of all ranks, with gradients."""

import torch
import torch.distributed as dist

import retrofit.distributed as rd


class GatherRows(torch.autograd.Function):
    """Puts the rows of all ranks one below the other, rank 0's first.

    For a loss that every rank computes over all rows: its gradient is the same on every rank, and a rank passes on
    the part of its own rows. DDP then averages, so that part is multiplied by the number of ranks.
    """

    @staticmethod
    def forward(ctx, rows):
        parts = [torch.empty_like(rows) for _ in range(rd.get_world_size())]
        dist.all_gather(parts, rows.contiguous())
        return torch.cat(parts)

    @staticmethod
    def backward(ctx, gradient):
        return gradient.chunk(rd.get_world_size())[rd.get_rank()] * rd.get_world_size()


def gather_rows(rows):
    """Return the rows of all ranks (the same number on each); outside a group, `rows`. Collective: every rank."""
    return GatherRows.apply(rows) if rd.process_group.is_distributed() else rows
