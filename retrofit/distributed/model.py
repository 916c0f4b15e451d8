"""Models over all ranks; the identity outside a group."""

from __future__ import annotations

import os
from typing import Any

from torch import nn

from .ddp.comm_hooks import register_comm_hook
from .ddp.data_parallel import KEEPS_PREFIX, OneDevice, data_parallel, fitting_keys, is_data_parallel, script_model
from .ddp.forward_guard import run_alone
from .ddp.free_parameters import distribute_parameter
from .ddp.sync_batchnorm import convert_sync_batchnorm
from .ddp.unwrap import unwrap_model
from .ddp.weigh_gradients import weigh_gradients
from .ddp.wrapper import DDPWrapper, broadcast_buffers
from .options import get_option
from .process_group import require_group

__all__ = [
    "DDPWrapper",
    "broadcast_buffers",
    "convert_sync_batchnorm",
    "data_parallel",
    "distribute_model",
    "distribute_parameter",
    "fitting_keys",
    "is_data_parallel",
    "run_alone",
    "script_model",
    "unwrap_model",
]

BATCHNORM_TWIN = "RETROFIT_BATCHNORM"
STRATEGY_TWIN = "RETROFIT_STRATEGY"


def distribute_model(
    model: nn.Module,
    strategy: str | None = None,
    *,
    sync_batchnorm: bool | None = None,
    find_unused_parameters: bool | None = None,
    **options: Any,
) -> nn.Module:
    """Return `model` with gradients averaged and BatchNorm statistics taken over all samples of all ranks.

    Move it to its device first, and create the optimizer afterwards. In an uneven last batch of a loader of
    `distribute_loader` the ranks count by their numbers of samples. Without `sync_batchnorm` (by default what
    RETROFIT_BATCHNORM says: sync, or local) every rank keeps its own BatchNorm statistics, which is faster and another
    training; `model.eval()` then gives all ranks those of rank 0, and every rank must call it. Parameters that no loss
    depends on, or not every loss, are found and left as in one process, unless `find_unused_parameters` is given, which
    is DDP's own option and means nothing under another strategy.

    `strategy`, for a training loop that is written for `rd.strategies`: a value of `--strategy`; DDP by default.
    `options` go to the strategy's wrapper and win over the flags. None comes back as None. Collective: every rank.
    Raises ValueError for another value of a variable, RuntimeError before setup_distributed, and what the strategy's
    wrapper raises.
    """
    if model is None:  # a part that the options leave out: `encoder = Encoder() if args.vae else None`
        return model
    require_group("distribute_model")
    if isinstance(model, DDPWrapper) or (isinstance(model, nn.DataParallel) and not isinstance(model, OneDevice)):
        return model  # wrapped already; under DataParallel one process drives all GPUs
    is_synchronised = _synchronises_batchnorm() if sync_batchnorm is None else sync_batchnorm
    module = model.module if isinstance(model, OneDevice) else model
    converted = convert_sync_batchnorm(module) if is_synchronised else module
    of_ddp = {} if find_unused_parameters is None else {"find_unused_parameters": find_unused_parameters}
    if strategy is None:
        _refuse_other_strategies()
        wrapped = wrap_ddp(converted, **options, **of_ddp)
    else:
        from .strategies.select import resolve_strategy, wrap_model  # which imports this module

        wrapped = wrap_model(converted, strategy, **options, **(of_ddp if resolve_strategy(strategy) == "ddp" else {}))
    if wrapped is module:
        return model
    if isinstance(wrapped, DDPWrapper):
        wrapped.__dict__[KEEPS_PREFIX] = isinstance(model, OneDevice)
        # With statistics of their own, the ranks would evaluate different models.
        wrapped.__dict__["broadcasts_before_evaluation"] = not is_synchronised
        weigh_gradients(wrapped)
        if find_unused_parameters is None:
            wrapped.look_for_unused()
    return wrapped


def wrap_ddp(model: nn.Module, **options: Any) -> nn.Module:
    """Return `model` in a DDPWrapper with the options of the flags; a model that is not trained as it is."""
    if not any(parameter.requires_grad for parameter in model.parameters()):
        return model
    for name in ("find_unused_parameters", "gradient_as_bucket_view", "static_graph"):
        if get_option(name):
            options.setdefault(name, True)
    options.setdefault("bucket_cap_mb", get_option("bucket_cap_mb"))
    wrapped = DDPWrapper(model, **options)
    register_comm_hook(wrapped, get_option("comm_hook"))
    return wrapped


def _synchronises_batchnorm() -> bool:
    choice = os.environ.get(BATCHNORM_TWIN) or "sync"
    if choice not in ("sync", "local"):
        raise ValueError(f"{BATCHNORM_TWIN}={choice!r} is not valid; use one of: sync, local, or unset it")
    return choice == "sync"


def _refuse_other_strategies() -> None:
    strategy = os.environ.get(STRATEGY_TWIN) or "auto"
    if strategy not in ("auto", "single", "ddp"):
        raise ValueError(
            f"{STRATEGY_TWIN}={strategy}: this script trains with ddp; for another strategy call "
            f"rd.distribute_model(model, strategy={strategy!r}), and rd.save_checkpoint on every rank"
        )
