"""BatchNorm over the global batch on any backend; torch's nn.SyncBatchNorm refuses CPU tensors."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn

from .process_group import is_distributed


def convert_sync_batchnorm(model: nn.Module) -> nn.Module:
    """Return `model` with every BatchNorm layer synchronised over ranks; outside a group, `model` as it is.

    On CUDA this is torch's own nn.SyncBatchNorm, on the CPU `CPUSyncBatchNorm`. Call it on every rank before wrapping.
    """
    if not is_distributed():
        return model
    if torch.cuda.is_available():
        return nn.SyncBatchNorm.convert_sync_batchnorm(model)
    return _convert(model)


def _convert(module: nn.Module) -> nn.Module:
    if isinstance(module, nn.modules.batchnorm._BatchNorm) and not isinstance(module, CPUSyncBatchNorm):
        layer = CPUSyncBatchNorm(
            module.num_features, module.eps, module.momentum, module.affine, module.track_running_stats
        )
        # The very parameters and buffers, so that an optimizer that already holds them stays valid.
        layer._parameters, layer._buffers = module._parameters, module._buffers
        layer.training = module.training
        return layer
    for name, child in module.named_children():
        setattr(module, name, _convert(child))
    return module


class CPUSyncBatchNorm(nn.modules.batchnorm._BatchNorm):
    """Batch normalisation whose training statistics are those of the batches of all ranks together.

    Input (N, C, ...) float. Collective: every rank, in training mode. Statistics in float32 (float64 for
    float64 input); running variance unbiased over the global count, as in nn.BatchNorm2d.
    """

    def _check_input_dim(self, input: torch.Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(f"expected (N, C, ...), got {input.dim()} dimension(s)")

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        self._check_input_dim(input)
        if not self.training or not is_distributed():
            return super().forward(input)
        x = input if input.dtype == torch.float64 else input.float()
        dims = [0, *range(2, x.dim())]
        shape = [1, -1] + [1] * (x.dim() - 2)
        local_count = torch.full((1,), x.numel() / x.shape[1], dtype=x.dtype)
        sums = _SumOverRanks.apply(torch.cat([x.sum(dims), local_count]))
        count = sums[-1]
        mean = sums[:-1] / count
        centered = x - mean.view(shape)
        # Two passes: E[x^2] - E[x]^2 cancels badly in float32.
        variance = _SumOverRanks.apply((centered * centered).sum(dims)) / count
        output = centered * torch.rsqrt(variance + self.eps).view(shape)
        if self.affine:
            output = output * self.weight.view(shape) + self.bias.view(shape)
        self._update_running_statistics(mean.detach(), variance.detach(), float(count.detach()))
        return output.to(input.dtype)

    def _update_running_statistics(self, mean: torch.Tensor, variance: torch.Tensor, count: float) -> None:
        if not self.track_running_stats or self.running_mean is None or self.running_var is None:
            return
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        factor = 1.0 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), factor)
        self.running_var.lerp_((variance * count / max(count - 1, 1)).to(self.running_var.dtype), factor)


class _SumOverRanks(torch.autograd.Function):
    """Sum over ranks; the gradient of a sum of every rank's loss is the sum of the ranks' gradients."""

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, tensor: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        total = tensor.detach().clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        total = gradient.contiguous().clone()
        dist.all_reduce(total)
        return total
