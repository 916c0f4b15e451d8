"""BatchNorm of a traced run: noted where it sees one rank's share only, synchronised where the run is controlled."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from retrofit.distributed.ddp.sync_batchnorm import SumOverRanks, sync_batch_norm
from retrofit.distributed.process.process_group import get_world_size
from retrofit.verify.trace.events import BatchStatistics, LocalBatchNorm, Record

from .operators import untraced


def install_batchnorm(record: Record, controlled: bool, rows: Callable[[], list[int]] | None = None) -> None:
    """Replace torch.nn.functional.batch_norm, which every BatchNorm layer calls, for the rest of the process.

    In training in a group of several ranks it records LocalBatchNorm once; if `controlled`, it computes with the
    statistics of all ranks. On one process it records BatchStatistics then. With `rows`, only inside a batch: a
    forward pass for a model summary may be one rank's alone, and waiting for the others would never end.
    """
    natural = F.batch_norm
    is_recorded = False
    synchronised = _SynchronisedLayer()
    synchronised.install()

    @functools.wraps(natural)
    def batch_norm(
        input: torch.Tensor,
        running_mean: torch.Tensor | None,
        running_var: torch.Tensor | None,
        weight: torch.Tensor | None = None,
        bias: torch.Tensor | None = None,
        training: bool = False,
        momentum: float = 0.1,
        eps: float = 1e-5,
    ) -> torch.Tensor:
        nonlocal is_recorded
        # A layer without running statistics says "training" in evaluation too.
        is_training = training and (running_mean is not None or torch.is_grad_enabled())
        if synchronised.is_called and get_world_size() > 1:
            return _synchronised(input, running_mean, running_var, weight, bias, momentum, eps)
        if not is_training or (rows is not None and not rows()):
            return natural(input, running_mean, running_var, weight, bias, training, momentum, eps)
        is_alone = get_world_size() == 1
        if not is_recorded and (controlled or not is_alone):
            is_recorded = True
            size = input.shape[0]
            record(BatchStatistics(size) if is_alone else LocalBatchNorm(size, input.shape[1]))
        if is_alone or not controlled:
            return natural(input, running_mean, running_var, weight, bias, training, momentum, eps)
        # One value per channel on a rank is an error by nature, and remains one.
        F._verify_batch_size(input.size())  # type: ignore[attr-defined]
        return _synchronised(input, running_mean, running_var, weight, bias, momentum, eps)

    F.batch_norm = torch.jit.ignore(batch_norm)


class _SynchronisedLayer:
    """Lets nn.SyncBatchNorm run on the CPU, which torch refuses, though not what it computes.

    In a group other than that of all ranks it remains refused.
    """

    def __init__(self) -> None:
        self.is_called = False  # F.batch_norm is called by such a layer

    def install(self) -> None:
        layers: Any = nn.SyncBatchNorm
        forward = layers.forward
        wrapper: Any = nn.parallel.DistributedDataParallel
        check = wrapper._passing_sync_batchnorm_handle

        @functools.wraps(forward)
        def on_any_device(layer: nn.SyncBatchNorm, input: torch.Tensor) -> torch.Tensor:
            if input.device.type != "cpu" or not layer.training or not _is_of_all_ranks(layer.process_group):
                return forward(layer, input)
            self.is_called = True
            try:
                return nn.modules.batchnorm._BatchNorm.forward(layer, input)
            finally:
                self.is_called = False

        @functools.wraps(check)
        def checked(model: Any, *args: Any, **kwargs: Any) -> Any:
            return None if model.device_type == "cpu" else check(model, *args, **kwargs)

        layers.forward = on_any_device
        wrapper._passing_sync_batchnorm_handle = checked


def _is_of_all_ranks(group: Any) -> bool:
    return group is None or dist.get_world_size(group) == get_world_size()


def _synchronised(
    input: torch.Tensor,
    running_mean: torch.Tensor | None,
    running_var: torch.Tensor | None,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    momentum: float,
    eps: float,
) -> torch.Tensor:
    # Like torch's own kernel, write the running statistics without a word to autograd (`.data`), but keep them for
    # backward: a script that changes them in between is told so, as it is without us.
    if running_mean is None or running_var is None:
        return sync_batch_norm(input, None, None, weight, bias, momentum, eps, _UntracedSum)
    mean, var = running_mean.data, running_var.data
    output = sync_batch_norm(input, mean, var, weight, bias, momentum, eps, _UntracedSum)
    return _KeepForBackward.apply(output, running_mean, running_var)


class _UntracedSum(SumOverRanks):
    """The sum over ranks, not taken for one of the script's own collectives."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor) -> torch.Tensor:
        with untraced():
            return SumOverRanks.forward(ctx, tensor)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return _UntracedSum.apply(gradient)


class _KeepForBackward(torch.autograd.Function):
    """Hands its first argument on; backward fails if one of the others has been modified meanwhile."""

    @staticmethod
    def forward(ctx: Any, output: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(*others)
        return output.clone()  # of a view autograd would forbid what often follows: ReLU(inplace=True)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return (gradient, *(None for _ in ctx.saved_tensors))
