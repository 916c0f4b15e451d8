"""One process of the all-reduce test: add up tensors with the others, check every sum, and report the time.

`allreduce` starts it with a launcher's variables; its arguments are `BACKEND TIMEOUT_S LARGEST_NUM_BYTES`. Each line
that begins with MARK is JSON for the parent; everything else is output of torch and NCCL.
"""

from __future__ import annotations

import faulthandler
import json
import os
import sys
import time
from datetime import timedelta
from typing import Any

MARK = "doctor:"
KIB, MIB = 2**10, 2**20
# Bytes, and how often: small ones for the latency, large ones for the bandwidth.
SIZES = ((KIB, 100), (32 * KIB, 50), (MIB, 20), (16 * MIB, 5), (64 * MIB, 3))
LARGEST = SIZES[-1][0]
PERIOD = 1009  # the values repeat, so that sums stay exact in float32


def main() -> None:
    """Join the group, add up tensors of all sizes, leave."""
    backend, timeout_s, largest = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])
    # Shows where it hangs, shortly before the parent kills it.
    faulthandler.dump_traceback_later(timeout_s, exit=False)
    _report(phase="import torch")
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = torch.device("cpu")
    if backend == "nccl":
        _report(phase=f"open GPU {rank}")
        device = torch.device("cuda", rank)
        torch.cuda.set_device(device)
    _report(phase="join the group")
    dist.init_process_group(backend, timeout=timedelta(seconds=timeout_s))
    for num_bytes, times in [one for one in SIZES if one[0] <= largest]:
        _report(phase=f"all-reduce of {num_bytes} bytes")
        wrong = wrong_sums(num_bytes // 4, rank, world_size, device)
        _report(num_bytes=num_bytes, wrong=wrong, seconds=seconds_of(num_bytes // 4, times, device))
    _report(addresses=sorted(own_addresses()))
    _report(phase="leave the group")
    dist.barrier()
    dist.destroy_process_group()
    _report(phase="done")
    os._exit(0)  # some torch versions abort at the interpreter's exit after a group


def wrong_sums(numel: int, rank: int, world_size: int, device: Any) -> str:
    """Return what is wrong with the sum of one tensor per rank, or nothing. Collective: every rank."""
    import torch
    import torch.distributed as dist

    base = torch.arange(numel, device=device).remainder_(PERIOD).float()
    tensor = base + rank
    dist.all_reduce(tensor)
    expected = base * world_size + world_size * (world_size - 1) // 2
    differs = tensor != expected
    if not bool(differs.any()):
        return ""
    first = int(differs.nonzero()[0])
    return (
        f"{int(differs.sum())} of {numel} sums differ, first at {first}: {float(tensor[first])!r} instead of "
        f"{float(expected[first])!r}"
    )


def seconds_of(numel: int, times: int, device: Any) -> float:
    """Return the seconds that one all-reduce takes, a mean of several. Collective: every rank."""
    import torch
    import torch.distributed as dist

    tensor = torch.zeros(numel, device=device)
    dist.all_reduce(tensor)  # the first one of a size sets up buffers
    if device.type == "cuda":
        torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(times):
        dist.all_reduce(tensor)
    if device.type == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - begin) / times


def own_addresses() -> set[str]:
    """Return this process's ends of its connections to the other ranks."""
    try:
        import psutil

        process = psutil.Process()
        ask = process.net_connections if hasattr(process, "net_connections") else process.connections  # psutil < 6
        connections = ask(kind="tcp")
    except Exception:  # the addresses are a help, never a reason to fail
        return set()
    store = int(os.environ["MASTER_PORT"])
    return {
        one.laddr.ip.removeprefix("::ffff:")
        for one in connections
        if one.status == psutil.CONN_ESTABLISHED and store not in (one.laddr.port, one.raddr.port)
    }


def _report(**facts: Any) -> None:
    print(MARK, json.dumps(facts), flush=True)


if __name__ == "__main__":
    main()
