"""The cost of FSDP, layer by layer, where it waits for each of its calls. Collective: every rank."""

from __future__ import annotations

import time
from statistics import median

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

KIB, MIB = 2**10, 2**20
LAYERS, STEPS = 4, 10
SIZES = (4 * KIB, 256 * KIB, 2 * MIB, 8 * MIB)  # bytes of a layer
LONGEST_STEP_S = 1.5
FULL, GRADIENTS = "fsdp", "fsdp grad-op"


def measured_layers() -> dict[str, list[tuple[float, float]]]:
    """Return for each way to shard the sizes of a layer in bytes, and the seconds that it adds to a step."""
    return {FULL: _sizes(reshard=True), GRADIENTS: _sizes(reshard=False)}


def measured_update() -> float:
    """Return the seconds that AdamW needs for a sharded parameter beyond those for a whole one, both tiny."""
    seconds = []
    for is_sharded in (False, True):
        model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(2 * LAYERS)))
        if is_sharded:
            fully_shard(model)
        optimizer = torch.optim.AdamW(model.parameters())
        steps = []
        for _ in range(3 * STEPS):
            model(torch.ones(1, 8)).sum().backward()
            begin = time.perf_counter()
            optimizer.step()
            steps.append(time.perf_counter() - begin)
            optimizer.zero_grad()
        seconds.append(median(steps[2:]) / (4 * LAYERS))
    return max(0.0, seconds[1] - seconds[0])


def _sizes(reshard: bool) -> list[tuple[float, float]]:
    found: list[tuple[float, float]] = []
    for size in SIZES:
        if found and LAYERS * found[-1][1] * size / found[-1][0] > LONGEST_STEP_S:
            break
        width = round((size / 4) ** 0.5)
        plain, sharded = _chain(width), _chain(width)
        for layer in sharded:
            fully_shard(layer, reshard_after_forward=reshard)
        fully_shard(sharded, reshard_after_forward=reshard)
        x = torch.ones(1, width)
        added = torch.tensor([(_step(sharded, x) - _step(plain, x)) / LAYERS])
        dist.all_reduce(added, op=dist.ReduceOp.MAX)
        found.append((4.0 * width * width, max(0.0, float(added))))
    return found


def _chain(width: int) -> nn.Sequential:
    return nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(LAYERS)))


def _step(model: nn.Module, x: torch.Tensor) -> float:
    """Return the seconds of a forward and a backward pass, lower quartile: other programs only make it longer."""
    seconds = []
    for _ in range(STEPS):
        dist.barrier()
        begin = time.perf_counter()
        model(x).sum().backward()
        seconds.append(time.perf_counter() - begin)
        model.zero_grad()
    return sorted(seconds)[STEPS // 4]
