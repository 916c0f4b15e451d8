"""The cost of DDP and FSDP on the CPU, measured on models without computation. Collective: every rank.

A model is layers of twelve tensors, as blocks of transformers have them, with one sample: what a strategy adds to its
step is calls, copies and the work of torch around them. Before each step a large tensor is changed, so that gradients
are no more in the caches than in a training.
"""

from __future__ import annotations

import time
from statistics import median

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from .link import Measured

KIB, MIB = 2**10, 2**20
LAYERS, STEPS = 4, 14
TENSORS, FEWER_TENSORS = 12, 2  # of a layer
SIZES = (32 * KIB, 512 * KIB, 2 * MIB, 8 * MIB)  # bytes of a layer
LONGEST_STEP_S = 1.5
CACHES = 32 * MIB  # bytes; more than the caches of a core
OPTIMIZERS = (torch.optim.AdamW, torch.optim.SGD)
DDP, FULL, GRADIENTS = "ddp", "fsdp", "fsdp grad-op"


def measured_strategies() -> Measured:
    """Return what each strategy adds to a step: DDP by the bytes of a model, FSDP by those of a layer."""
    added = {strategy: _sizes(strategy) for strategy in (DDP, FULL, GRADIENTS)}
    for_tensor = {strategy: _for_tensor(strategy) for strategy in (FULL, GRADIENTS)}
    return Measured(added, for_tensor, TENSORS, {kind.__name__: _update(kind) for kind in OPTIMIZERS})


def _for_tensor(strategy: str) -> float:
    """Return the seconds for a tensor of a layer, all of them small."""
    many, few = _added(strategy, SIZES[0], TENSORS), _added(strategy, SIZES[0], FEWER_TENSORS)
    return max(0.0, (many[1] - few[1]) / (TENSORS - FEWER_TENSORS))


def _update(kind: type[torch.optim.Optimizer]) -> float:
    """Return the seconds that an optimizer needs for a sharded parameter beyond those for a whole one, both tiny."""
    seconds = []
    for is_sharded in (False, True):
        model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(2 * LAYERS)))
        if is_sharded:
            fully_shard(model)
        optimizer = kind(model.parameters(), lr=1e-3)  # type: ignore[call-arg]
        steps = []
        for _ in range(3 * STEPS):
            model(torch.ones(1, 8)).sum().backward()
            begin = time.perf_counter()
            optimizer.step()
            steps.append(time.perf_counter() - begin)
            optimizer.zero_grad()
        seconds.append(median(steps[2:]) / (4 * LAYERS))
    return max(0.0, seconds[1] - seconds[0])


def _sizes(strategy: str) -> list[tuple[float, float]]:
    found: list[tuple[float, float]] = []
    for size in SIZES:
        if found and LAYERS * found[-1][1] * size / found[-1][0] > LONGEST_STEP_S:
            break
        found.append(_added(strategy, size, TENSORS))
    return [(LAYERS * size, LAYERS * seconds) for size, seconds in found] if strategy == DDP else found


def _added(strategy: str, size: int, tensors: int) -> tuple[float, float]:
    """Return the bytes of a layer, and the seconds that the strategy adds to a step for it."""
    width = round((size / 4 / (tensors // 2)) ** 0.5)
    plain, other = _model(width, tensors), _model(width, tensors)
    num_bytes = sum(parameter.nbytes for parameter in plain.parameters()) / LAYERS
    x = torch.ones(1, width)
    if strategy != DDP:
        for layer in other:
            fully_shard(layer, reshard_after_forward=strategy == FULL)
        fully_shard(other, reshard_after_forward=strategy == FULL)
    model = DistributedDataParallel(other) if strategy == DDP else other
    added = torch.tensor([(_step(model, x) - _step(plain, x)) / LAYERS])
    dist.all_reduce(added, op=dist.ReduceOp.MAX)
    return num_bytes, max(0.0, float(added))


def _model(width: int, tensors: int) -> nn.Sequential:
    layers = (nn.Sequential(*(nn.Linear(width, width) for _ in range(tensors // 2))) for _ in range(LAYERS))
    return nn.Sequential(*layers)


def _step(model: nn.Module, x: torch.Tensor) -> float:
    """Return the seconds of a forward and a backward pass, median; the first two are left out."""
    seconds = []
    others = torch.zeros(CACHES // 4)
    for _ in range(STEPS):
        others.add_(1)
        dist.barrier()
        begin = time.perf_counter()
        model(x).sum().backward()
        seconds.append(time.perf_counter() - begin)
        model.zero_grad()
    return median(seconds[2:])
