"""The norm of all gradients before they are clipped."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

import torch

from retrofit.verify.trace.computation.fingerprint import whole
from retrofit.verify.trace.computation.operators import untraced
from retrofit.verify.trace.events import GradientClip, Record


def record_clipping(record: Record) -> None:
    """Record the norm of all gradients at each call of torch.nn.utils.clip_grad_norm_ and clip_grad_value_."""
    for name in ("clip_grad_norm_", "clip_grad_value_"):
        clip = getattr(torch.nn.utils, name)
        traced = _traced(record, clip)
        for module in (torch.nn.utils, torch.nn.utils.clip_grad):
            setattr(module, name, traced)


def _traced(record: Record, clip: Any) -> Any:
    @functools.wraps(clip)
    def traced(parameters: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(parameters, torch.Tensor):
            parameters = list(parameters)
        with untraced(), torch.no_grad():
            norm = _norm([parameters] if isinstance(parameters, torch.Tensor) else parameters)
        record(GradientClip(norm))
        return clip(parameters, *args, **kwargs)

    return traced


def _norm(parameters: Iterable[torch.Tensor]) -> float:
    gradients = [whole(one.grad) for one in parameters if one.grad is not None]
    norms = [float((one.to_dense() if one.is_sparse else one).double().norm()) for one in gradients]
    squares = [norm * norm for norm in norms]  # of a large number a power is an error, a product infinite
    return float(sum(squares) ** 0.5)
