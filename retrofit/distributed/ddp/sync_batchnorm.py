"""BatchNorm over the global batch on any backend; torch's nn.SyncBatchNorm refuses CPU tensors."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from ..process.process_group import group_for, is_distributed
from .unwrap import reduced_as

EXTENDED_BY = ("timm.",)  # libraries whose BatchNorm layers do more: an activation of each entry


def convert_sync_batchnorm(model: nn.Module) -> nn.Module:
    """Return `model` with every BatchNorm layer synchronised over ranks; outside a group, `model` as it is.

    A layer stays an instance of its class, as in `isinstance(layer, nn.BatchNorm2d)`, and gets the forward of torch's
    nn.SyncBatchNorm on CUDA, of `CPUSyncBatchNorm` on the CPU. Call it on every rank before wrapping.
    timm's layers, which add an activation to BatchNorm, run their own forward. Raises ValueError for another layer with
    a forward of its own, and for one of a TorchScript model, which nothing would synchronise. None comes back as None.
    """
    if model is None or not is_distributed():
        return model
    for name, part in model.named_modules():
        if isinstance(part, torch.jit.ScriptModule) and "BatchNorm" in str(getattr(part, "original_name", "")):
            raise ValueError(
                f"{name or 'the model'} is BatchNorm in TorchScript, which cannot be synchronised; script the model "
                "after the training, or let every rank keep its own statistics: RETROFIT_BATCHNORM=local"
            )
    layers = {name: layer for name, layer in model.named_modules() if isinstance(layer, _BatchNorm)}
    forwards = (_BatchNorm.forward, nn.SyncBatchNorm.forward, CPUSyncBatchNorm.forward)
    for name, layer in layers.items():
        if _adds_activation(layer):
            continue
        if type(layer).forward not in forwards or "forward" in layer.__dict__:
            raise ValueError(
                f"{name or 'the model'} is a BatchNorm layer with a forward of its own ({type(layer).__qualname__}), "
                "which a synchronised layer would not run; RETROFIT_BATCHNORM=local, or "
                "rd.distribute_model(model, sync_batchnorm=False), leaves every rank its own statistics"
            )
    for layer in layers.values():
        if isinstance(layer, _Synchronised):
            continue
        if _adds_activation(layer):
            layer.__class__ = _class_with(SyncThroughForward, type(layer))
        elif torch.cuda.is_available():
            layer.__dict__.setdefault("process_group", None)
            layer.__class__ = _class_with(_CUDASyncBatchNorm, type(layer))
        else:
            layer.__class__ = _class_with(CPUSyncBatchNorm, type(layer))  # in place: parameters and hooks stay
    return model


def _adds_activation(layer: nn.Module) -> bool:
    is_known = type(layer).__module__.startswith(EXTENDED_BY) and "forward" not in layer.__dict__
    return isinstance(layer, SyncThroughForward) or is_known


_classes: dict[tuple[type, type], type[_BatchNorm]] = {}


def _class_with(kind: type[_Synchronised], replaced: type[_BatchNorm]) -> type[_BatchNorm]:
    """Return the class derived from both, with the forward of `kind`."""
    if (kind, replaced) not in _classes:
        name = f"Synchronised{replaced.__name__}"
        _classes[kind, replaced] = type(name, (kind, replaced), {"replaced": replaced})
    return _classes[kind, replaced]


class _Synchronised(_BatchNorm):
    """A BatchNorm layer that waits for the other ranks.

    In a file it is the layer that it replaced, which needs nothing of the runtime to be read; a copy is like itself.
    """

    replaced: type[nn.Module] = nn.BatchNorm2d

    def __reduce_ex__(self, protocol: Any) -> Any:
        plain = self.replaced.__new__(self.replaced)
        plain.__dict__.update(self.__dict__)
        return reduced_as(plain, protocol)

    def __deepcopy__(self, memo: dict[int, Any]) -> _Synchronised:
        copied = memo[id(self)] = type(self).__new__(type(self))
        copied.__dict__.update(copy.deepcopy(self.__dict__, memo))
        return copied


class _CUDASyncBatchNorm(_Synchronised, nn.SyncBatchNorm):
    """torch's own synchronised layer."""


class SyncThroughForward(_Synchronised):
    """A layer whose forward is BatchNorm and then something for each entry, over the batches of all ranks.

    Collective: every rank, in training mode.
    """

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        if not self.training or not is_distributed():
            return super().forward(input)
        own = nn.functional.batch_norm
        nn.functional.batch_norm = _batch_norm_of_ranks
        try:
            return super().forward(input)
        finally:
            nn.functional.batch_norm = own


class CPUSyncBatchNorm(_Synchronised):
    """BatchNorm of (N, C, ...) over the batches of all ranks. Collective: every rank, in training mode."""

    def _check_input_dim(self, input: torch.Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(f"expected (N, C, ...), got {input.dim()} dimension(s)")

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        self._check_input_dim(input)
        if not self.training or not is_distributed():
            return _BatchNorm.forward(self, input)
        if not self.track_running_stats or self.running_mean is None or self.running_var is None:
            return sync_batch_norm(input, None, None, self.weight, self.bias, 0.0, self.eps)
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        momentum = 1.0 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        return sync_batch_norm(input, self.running_mean, self.running_var, self.weight, self.bias, momentum, self.eps)


class SumOverRanks(torch.autograd.Function):
    """Sum over ranks, differentiable as often as wanted. Collective: every rank, in forward and in backward."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor) -> torch.Tensor:
        total = tensor.detach().clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=group_for(total))
        return total

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return SumOverRanks.apply(gradient)


def sync_batch_norm(
    input: torch.Tensor,
    running_mean: torch.Tensor | None,
    running_var: torch.Tensor | None,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    momentum: float,
    eps: float,
    sum_over_ranks: type[SumOverRanks] = SumOverRanks,
) -> torch.Tensor:
    """Return the training output of functional.batch_norm for the batches (N, C, ...) of all ranks together.

    Collective: every rank, in forward and in backward. Statistics are float32 (float64 for float64 input).
    """
    x = input if input.dtype == torch.float64 else input.float()
    dims = [0, *range(2, x.dim())]
    shape = [1, -1] + [1] * (x.dim() - 2)
    local_count = torch.full((1,), x.numel() / x.shape[1], dtype=x.dtype, device=x.device)
    sums = sum_over_ranks.apply(torch.cat([x.sum(dims), local_count]))
    count = sums[-1]
    mean = sums[:-1] / count
    centered = x - mean.view(shape)
    # Two passes: E[x^2] - E[x]^2 cancels badly in float32.
    variance = sum_over_ranks.apply((centered * centered).sum(dims)) / count
    output = centered * torch.rsqrt(variance + eps).view(shape)
    if weight is not None:
        output = output * weight.view(shape)
    if bias is not None:
        output = output + bias.view(shape)
    if running_mean is not None and running_var is not None:
        total = float(count.detach())
        running_mean.lerp_(mean.detach().to(running_mean.dtype), momentum)
        unbiased = variance.detach() * total / max(total - 1, 1)
        running_var.lerp_(unbiased.to(running_var.dtype), momentum)
    return output.to(input.dtype)


def _batch_norm_of_ranks(
    input: torch.Tensor,
    running_mean: torch.Tensor | None,
    running_var: torch.Tensor | None,
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> torch.Tensor:
    """Return what functional.batch_norm gives for the batches of all ranks."""
    if not training:
        return torch.batch_norm(input, weight, bias, running_mean, running_var, False, momentum, eps, False)
    return sync_batch_norm(input, running_mean, running_var, weight, bias, momentum, eps)


@contextmanager
def own_statistics(module: nn.Module) -> Iterator[None]:
    """Let synchronised BatchNorm layers in training mode use this rank's batch; in evaluation mode they do not wait."""
    waiting = waiting_layers(module)
    for layer in waiting:
        kind = layer.replaced if isinstance(layer, SyncThroughForward) else _BatchNorm
        layer.forward = partial(kind.forward, layer)  # type: ignore[method-assign,arg-type]
    try:
        yield
    finally:
        for layer in waiting:
            del layer.forward


def waiting_layers(module: nn.Module, always: bool = False) -> list[nn.Module]:
    """Return the BatchNorm layers whose forward waits for the other ranks; `always`: or would in training mode."""
    kinds = (nn.SyncBatchNorm, CPUSyncBatchNorm, SyncThroughForward)
    return [layer for layer in module.modules() if isinstance(layer, kinds) and (layer.training or always)]
