"""Wrap a model for its parallel strategy. The one place that knows every strategy."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from ..ddp.model import STRATEGIES, wrap_ddp
from ..ddp.unwrap import unwrap_model
from ..process.options import get_option
from ..process.process_group import get_world_size, is_distributed
from .comm_hooks import register_comm_hook
from .converted.torch_fsdp import is_sharded
from .fsdp import FSDPWrapper, MixedPrecision, resolve_dtype
from .layers import choose_layers
from .recompute import recompute_layers
from .zero import (
    ZeroModel,
    ZeroWrapper,
    backward_zero,
    check_clipping,
    gathered_zero,
    make_zero,
    refuse_sharded,
    zero_sync,
)


def resolve_strategy(strategy: str = "auto") -> str:
    """Return the strategy that "auto" means here, any other as it is; outside a process group single or dp.

    Raises ValueError for an unknown one, and for one of a single process where there are several.
    """
    if strategy not in ("auto", *WRAPPERS):
        raise ValueError(f"unknown strategy {strategy!r}; use one of: auto, {', '.join(WRAPPERS)}")
    if strategy == "auto":
        return "ddp" if is_distributed() else "single"
    if strategy in ("single", "dp") and get_world_size() > 1:
        raise ValueError(
            f"--strategy {strategy} is for one process, and the launcher started {get_world_size()}; start with "
            "python train.py, or use --strategy ddp"
        )
    return strategy if is_distributed() or strategy == "dp" else "single"


def wrap_model(
    model: nn.Module,
    strategy: str | None = None,
    *,
    find_unused_parameters: bool | None = None,
    methods: Collection[str] = (),
    **options: Any,
) -> nn.Module:
    """Return `model` ready to train under `strategy`, by default that of `--strategy`; see `distribute_model`.

    A model without trainable parameters needs no wrapper and comes back as it is, as does one that is wrapped already.
    `options` go to the strategy's wrapper, and override the flags; `find_unused_parameters` and `methods` go to that of
    ddp only. Collective: every rank. Raises what the wrapper raises, and ValueError for `methods` of a sharded model.
    """
    asked = get_option("strategy") if strategy is None else strategy
    if get_option("ds_config") and asked != "deepspeed":
        raise ValueError(
            f"--ds_config {get_option('ds_config')} is of no use to --strategy {asked}; add --strategy deepspeed, or "
            "leave it out"
        )
    strategy = resolve_strategy(asked)
    is_trained = any(parameter.requires_grad for parameter in model.parameters())
    if not is_trained or isinstance(model, (DistributedDataParallel, DataParallel, ZeroModel)) or is_sharded(model):
        return model
    if get_option("grad_ckpt"):
        recompute_layers(choose_layers(unwrap_model(model), _layer_names(), get_option("min_num_params")))
    if strategy == "ddp" and find_unused_parameters is not None:
        options["find_unused_parameters"] = find_unused_parameters
    if methods and strategy == "ddp":
        options["methods"] = methods
    elif methods and strategy not in ("single", "dp"):
        raise ValueError(
            f"--strategy {strategy} runs a model by its forward only, and this training calls {', '.join(methods)} "
            "too; use --strategy ddp, or choose the path inside forward()"
        )
    wrapped = WRAPPERS[strategy](model, **options)
    if get_option("ckpt") == "sharded":
        refuse_sharded(wrapped)
    return wrapped


def _single(model: nn.Module) -> nn.Module:
    return model


def _dp(model: nn.Module, **options: Any) -> nn.Module:
    """Return the model in a DataParallel over all visible GPUs; there is nothing to wrap where there is none."""
    return DataParallel(model, **options) if torch.cuda.device_count() > 1 else model


def _ddp(model: nn.Module, **options: Any) -> nn.Module:
    for name in ("gradient_as_bucket_view", "static_graph"):
        if get_option(name):
            options.setdefault(name, True)
    options.setdefault("bucket_cap_mb", get_option("bucket_cap_mb"))
    wrapped = wrap_ddp(model, **options)
    register_comm_hook(wrapped, get_option("comm_hook"))
    return wrapped


def _fsdp(model: nn.Module, **options: Any) -> nn.Module:
    given = {
        "sharding_strategy": get_option("sharding"),
        "min_num_params": get_option("min_num_params"),
        "wrap_layers": _layer_names(),
        "cpu_offload": get_option("cpu_offload"),
        "shard_size": get_option("shard_size"),
        "mixed_precision": MixedPrecision(
            *(resolve_dtype(get_option(f"{name}_dtype")) for name in ("param", "reduce", "buffer"))
        ),
    }
    return FSDPWrapper(model, **{**given, **options})


def _layer_names() -> list[str]:
    return [name.strip() for name in get_option("wrap_layers").split(",") if name.strip()]


WRAPPERS: dict[str, Callable[..., nn.Module]] = {
    "single": _single,
    "dp": _dp,
    "ddp": _ddp,
    "fsdp": _fsdp,
    "deepspeed": ZeroWrapper,
}
STRATEGIES.update({name: partial(wrap_model, strategy=name) for name in ("auto", *WRAPPERS)})


def wrap_optimizer(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    micro_batch: int = 1,
    accum_steps: int = 1,
    amp: str = "off",
    clip_grad: float = 0.0,
) -> torch.optim.Optimizer:
    """Return what to step instead of `optimizer`: itself, except under strategy deepspeed, which takes both over.

    Call it once, after `distribute_model` and before schedulers and `load_checkpoint`. The rest is for DeepSpeed's
    configuration: samples per rank in a micro batch, micro batches per step, the precision (off or bf16) and the norm
    to clip at (0: none), which `clip_grad_norm` must be called with. Collective: every rank. Raises ValueError for a
    `--ds_config` file that contradicts them, and for an optimizer that ZeRO would make another one.
    """
    if not isinstance(model, ZeroModel):
        return optimizer
    return make_zero(model, optimizer, micro_batch=micro_batch, accum_steps=accum_steps, amp=amp, clip_grad=clip_grad)


def backward(model: nn.Module, loss: torch.Tensor) -> None:
    """Run backward from the loss of one micro batch of `model`. Collective: every rank."""
    if isinstance(model, ZeroModel):
        backward_zero(model, loss)
    else:
        loss.backward()


def clip_grad_norm(model: nn.Module, max_norm: float) -> None:
    """Scale the gradients down to a norm of at most `max_norm` over all parameters; DeepSpeed does so in its step.

    Collective: every rank. Raises ValueError when DeepSpeed was told another norm.
    """
    if isinstance(model, ZeroModel):
        check_clipping(model, max_norm)
    else:
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)


def whole_parameters(model: nn.Module) -> AbstractContextManager:
    """Return a context in which the parameters can be read as the module has them: gathered, under ZeRO stage 3.

    For what reads them outside the training, such as an EMA. Collective: every rank.
    """
    return gathered_zero(model) if isinstance(model, ZeroModel) else nullcontext()


def gradient_sync(model: nn.Module, enabled: bool) -> AbstractContextManager:
    """Return a context in which backward synchronises gradients over ranks (`enabled`) or only accumulates them.

    Both forward and backward of a micro batch belong inside; enable it for the last one of a step.
    """
    if is_sharded(model):
        return _fsdp_sync(model, enabled)
    if isinstance(model, ZeroModel):
        return zero_sync(model, enabled)
    if enabled or not isinstance(model, DistributedDataParallel):
        return nullcontext()
    return model.no_sync()


@contextmanager
def _fsdp_sync(model: Any, enabled: bool) -> Iterator[None]:
    model.set_requires_gradient_sync(enabled)
    try:
        yield
    finally:
        model.set_requires_gradient_sync(True)
