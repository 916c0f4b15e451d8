"""Measurements of collective calls between the ranks of a process group. Collective: every rank, for each function."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import torch
import torch.distributed as dist

from .link import ALL_GATHER, ALL_REDUCE, ALL_REDUCE_16, BROADCAST, REDUCE_SCATTER, Copies, Overlap

KIB, MIB = 2**10, 2**20
SIZES = (256, 4 * KIB, 32 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB, 64 * MIB)
LONGEST_CALL_S, OF_A_SIZE_S = 0.4, 0.25
FEWEST, MOST = 2, 200  # calls of a size


def measured_calls(device: torch.device) -> dict[str, list[tuple[float, float]]]:
    """Return for each kind of call its sizes in bytes, of the whole tensor, and seconds."""
    return {kind: _sizes(kind, device) for kind in (ALL_REDUCE, ALL_REDUCE_16, ALL_GATHER, REDUCE_SCATTER, BROADCAST)}


def measured_copies(device: torch.device) -> Copies:
    """Return what copies to and from buckets take, all ranks at once."""
    gradient = torch.ones(4 * MIB // 4, device=device)
    bucket, narrow = torch.empty_like(gradient), gradient.bfloat16()

    def seconds(copy: Callable[[], object]) -> float:
        return _mean_seconds(copy, device, 20) / gradient.nbytes

    return Copies(
        into_bucket=seconds(lambda: torch.mul(gradient, 0.5, out=bucket)),
        out_of_bucket=seconds(lambda: gradient.copy_(bucket)),
        to_16_bits=seconds(lambda: bucket.to(torch.bfloat16).div_(2)),
        from_16_bits=seconds(lambda: bucket.copy_(narrow)),
    )


def measured_overlap(device: torch.device, all_reduce: list[tuple[float, float]]) -> Overlap:
    """Return how fast computation and all-reduces are at the same time."""
    size, alone = max((one for one in all_reduce if one[1] < 0.2 and one[0] <= 4 * MIB), default=all_reduce[0])
    left, right = torch.rand(192, 192, device=device), torch.rand(192, 192, device=device)
    data = torch.zeros(max(1, int(size) // 4), device=device)

    def compute() -> object:
        return left @ right

    alone_s = _mean_seconds(compute, device, 200)
    shares, stretches = [], []
    for _ in range(max(3, min(50, int(0.5 / alone)))):
        dist.barrier()
        _wait_for(device)
        work = dist.all_reduce(data, async_op=True)
        assert work is not None
        begin, made = time.perf_counter(), 0
        while not work.is_completed() and made < 100_000:
            compute()
            _wait_for(device)
            made += 1
        seconds = time.perf_counter() - begin
        work.wait()
        shares.append(made * alone_s / seconds)
        stretches.append(alone / seconds)
    values = torch.tensor([median(shares), median(stretches)], device=device)
    dist.all_reduce(values)
    computation, call = (values / dist.get_world_size()).tolist()
    return Overlap(min(1.0, max(0.02, computation)), min(1.0, max(0.05, call)))


def _sizes(kind: str, device: torch.device) -> list[tuple[float, float]]:
    found: list[tuple[float, float]] = []
    for size in SIZES:
        if found and found[-1][1] * size / found[-1][0] > LONGEST_CALL_S and found[-1][0] >= 32 * KIB:
            break
        call = _call(kind, size, device)
        wanted = OF_A_SIZE_S / _mean_seconds(call, device, 1)
        times = torch.tensor([float(max(FEWEST, min(MOST, wanted)))], device=device)
        dist.all_reduce(times, op=dist.ReduceOp.MIN)
        seconds = torch.tensor([_mean_seconds(call, device, int(times))], device=device)
        dist.all_reduce(seconds, op=dist.ReduceOp.MAX)
        found.append((float(size), float(seconds)))
    return found


def _call(kind: str, num_bytes: int, device: torch.device) -> Callable[[], object]:
    ranks = dist.get_world_size()
    numel = max(1, num_bytes // (2 if kind == ALL_REDUCE_16 else 4))
    whole = torch.zeros(-(-numel // ranks) * ranks, device=device)
    part = whole[: whole.numel() // ranks].clone()
    if kind == ALL_REDUCE_16:
        whole = whole.bfloat16()
    calls: dict[str, Callable[[], object]] = {
        ALL_GATHER: lambda: dist.all_gather_into_tensor(whole, part),
        REDUCE_SCATTER: lambda: dist.reduce_scatter_tensor(part, whole),
        BROADCAST: lambda: dist.broadcast(whole, 0),
    }
    return calls.get(kind, lambda: dist.all_reduce(whole))


def _mean_seconds(call: Callable[[], object], device: torch.device, times: int) -> float:
    call()
    _wait_for(device)
    begin = time.perf_counter()
    for _ in range(times):
        call()
    _wait_for(device)
    return (time.perf_counter() - begin) / times


def _wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()
