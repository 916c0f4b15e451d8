"""Steps of a DeepSpeed engine, whose optimizer holds flat pieces of the weights instead of the weights (ZeRO)."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist

from retrofit.verify.trace.after_import import after_import


class ZeroOptimizer:
    """Takes the place of an engine's optimizer: the same rates, and the weights of the model."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self._weights = [weight for weight in engine.module.parameters() if weight.requires_grad]

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        rates = [float(group["lr"]) for group in self._engine.optimizer.param_groups]
        return [{"params": [] if place else self._weights, "lr": rate} for place, rate in enumerate(rates)]

    def step(self, step: Callable[..., Any], args: tuple, kwargs: dict) -> Any:
        """Make a step of the engine, in a frame that says whose step it is."""
        return step(self._engine, *args, **kwargs)


def install_zero(begin: Callable[[Any], None], end: Callable[[Any], None]) -> None:
    """Call `begin` before and `end` after a step of an engine, with its ZeroOptimizer, once DeepSpeed is imported."""

    def watch(module: ModuleType) -> None:
        # Its buffers have gigabytes, and are made again in each backward.
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
        engines: dict[int, ZeroOptimizer] = {}
        step = module.DeepSpeedEngine.step

        @functools.wraps(step)
        def traced(engine: Any, *args: Any, **kwargs: Any) -> Any:
            if not engine.zero_optimization() or not engine.is_gradient_accumulation_boundary():
                return step(engine, *args, **kwargs)
            optimizer = engines.setdefault(id(engine), ZeroOptimizer(engine))
            begin(optimizer)
            result = optimizer.step(step, args, kwargs)
            end(optimizer)
            return result

        module.DeepSpeedEngine.step = traced

    after_import("deepspeed.runtime.engine", watch)


def is_partitioned(weight: torch.Tensor) -> bool:
    """Return whether ZeRO keeps only a piece of a weight on each rank (stage 3)."""
    return hasattr(weight, "ds_numel")


def whole_weight(weight: torch.Tensor) -> torch.Tensor:
    """Return a weight in one piece. Collective for one that is partitioned."""
    if not is_partitioned(weight):
        return weight
    with sys.modules["deepspeed"].zero.GatheredParameters([weight]):
        return weight.detach().clone()


def whole_gradient(weight: Any) -> torch.Tensor | None:
    """Return the gradient of a weight under ZeRO in float64; None where there is none. Collective."""
    if is_partitioned(weight) and hasattr(weight, "_z3_optimizer"):
        return _of_stage_3(weight)
    if not hasattr(weight, "_dp_group"):
        return None
    gradient = torch.zeros(weight.numel(), dtype=torch.float64, device=weight.device)
    mapping = weight._hp_mapping  # of the part of the weight that this rank updates, if there is one
    if mapping is not None:
        own, piece = mapping.lp_fragment_address, mapping.get_lp_grad_fragment(weight._index_in_param_group)
        piece = piece.reshape(-1)
        if piece.numel() == weight.numel():
            piece = piece.narrow(0, own.start, own.numel)
        gradient.narrow(0, own.start, own.numel).copy_(piece)
    dist.all_reduce(gradient, group=weight._dp_group)
    return gradient.reshape_as(weight)


def _of_stage_3(weight: Any) -> torch.Tensor:
    own, _ = weight._z3_optimizer._get_fp32_grad_state_partition(param=weight, release_swap_buffers=True)
    own = own.reshape(-1).double().contiguous()
    group = weight.ds_process_group
    pieces = [torch.empty_like(own) for _ in range(dist.get_world_size(group))]
    dist.all_gather(pieces, own, group=group)
    return torch.cat(pieces)[: weight.ds_numel].reshape(weight.ds_shape)
