"""Parallel strategies other than plain DDP, and what a training loop needs to work with each: `rd.strategies`."""

from .converted.torch_fsdp import is_sharded
from .evaluation_batches import EvaluationBatches
from .flags import add_all_flags
from .fsdp import MixedPrecision
from .select import (
    backward,
    clip_grad_norm,
    gradient_sync,
    resolve_strategy,
    whole_parameters,
    wrap_optimizer,
)
from .zero import ZeroModel, ZeroOptimizer

__all__ = [
    "EvaluationBatches",
    "MixedPrecision",
    "ZeroModel",
    "ZeroOptimizer",
    "add_all_flags",
    "backward",
    "clip_grad_norm",
    "gradient_sync",
    "is_sharded",
    "resolve_strategy",
    "whole_parameters",
    "wrap_optimizer",
]
