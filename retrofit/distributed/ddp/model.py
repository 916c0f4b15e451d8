"""Models over all ranks; the identity outside a group."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Collection, MutableMapping, MutableSequence
from types import SimpleNamespace
from typing import Any, TypeVar

import torch
from torch import nn

from ..collectives import broadcast_object, reduce_mean
from ..data.batch import weight_of
from ..evaluation import is_sharing
from ..process.options import BATCHNORM, get_option, read_twin
from ..process.process_group import is_distributed, require_group
from .data_parallel import KEEPS_PREFIX, OneDevice, data_parallel, fitting_keys, is_data_parallel, script_model
from .forward_guard import run_alone
from .sync_batchnorm import convert_sync_batchnorm
from .unwrap import all_parameters, unwrap_model
from .wrapper import DDPWrapper, broadcast_buffers

__all__ = [
    "DDPWrapper",
    "broadcast_buffers",
    "convert_sync_batchnorm",
    "data_parallel",
    "distribute_model",
    "distribute_models",
    "distribute_parameter",
    "fitting_keys",
    "is_data_parallel",
    "run_alone",
    "script_model",
    "unwrap_model",
]

STRATEGY_TWIN = "RETROFIT_STRATEGY"
SHARDED_NUMBER = "sharded_number"  # in the __dict__ of a model that RETROFIT_STRATEGY=fsdp has sharded, in place

TensorT = TypeVar("TensorT", bound=torch.Tensor)
ModelsT = TypeVar("ModelsT")


def distribute_model(
    model: nn.Module,
    strategy: str | None = None,
    *,
    sync_batchnorm: bool | None = None,
    find_unused_parameters: bool | None = None,
    methods: Collection[str] = (),
    **options: Any,
) -> nn.Module:
    """Return `model` with gradients averaged and BatchNorm statistics taken over all samples of all ranks.

    Move it to its device first, and create the optimizer afterwards. Without `sync_batchnorm` (by default what
    RETROFIT_BATCHNORM says: sync, or local) every rank keeps its own BatchNorm statistics, which is faster and another
    training; `model.eval()` then gives all ranks those of rank 0, and every rank must call it. Unused parameters are
    found, unless `find_unused_parameters` is given, DDP's own option. `methods`: names of its methods and layers that
    the training calls itself, as `model.encode(x)` and `model.head(z)`, instead of the model or in addition to it.

    `strategy`, for a training loop that is written for `rd.strategies`: a value of `--strategy`; DDP by default.
    `options` go to the strategy's wrapper and win over the flags. None comes back as None. Collective: every rank.
    Raises ValueError for an unknown strategy, value or kind of BatchNorm layer, RuntimeError before setup_distributed.
    """
    if model is None:  # a part that the options leave out: `encoder = Encoder() if args.vae else None`
        return model
    require_group("distribute_model")
    if _is_wrapped(model):
        return model
    by_environment = _wrapper_by_environment() if strategy is None else None
    if strategy is not None and strategy not in STRATEGIES:
        raise ValueError(
            f"unknown strategy {strategy!r}; use one of: {', '.join(STRATEGIES)}; the others are in the whole kit: "
            "pip install CLONE (the path of its clone), and write `import retrofit.distributed as rd`"
        )
    is_synchronised = read_twin(BATCHNORM) == "sync" if sync_batchnorm is None else sync_batchnorm
    module = model.module if isinstance(model, OneDevice) else model
    converted = convert_sync_batchnorm(module) if is_synchronised else module
    if find_unused_parameters is not None:
        options["find_unused_parameters"] = find_unused_parameters
    if methods:
        options["methods"] = methods
    wrapped = (by_environment or STRATEGIES[strategy or "ddp"])(converted, **options)
    if isinstance(wrapped, DDPWrapper) or SHARDED_NUMBER in wrapped.__dict__:
        # With statistics of their own, the ranks would evaluate different models.
        wrapped.__dict__["broadcasts_before_evaluation"] = not is_synchronised
    if wrapped is module:
        return model
    if isinstance(wrapped, DDPWrapper):
        wrapped.__dict__[KEEPS_PREFIX] = isinstance(model, OneDevice)
    elif isinstance(model, OneDevice) and SHARDED_NUMBER in wrapped.__dict__:
        model.module = wrapped  # whose class or BatchNorm layer was changed
        return model
    return wrapped


def _is_wrapped(model: nn.Module) -> bool:
    """Return whether a model is wrapped already; under torch's DataParallel one process drives all GPUs."""
    if isinstance(model, OneDevice):
        return isinstance(model.module, DDPWrapper)
    return isinstance(model, (DDPWrapper, nn.DataParallel))


def distribute_models(models: ModelsT, *, methods: Collection[str] = (), **options: Any) -> ModelsT:
    """Return `models`, a dict or a list of models, with each of them as `distribute_model` returns it, in its place.

    Also in tuples, in nn.ModuleDict and nn.ModuleList, in attributes of a namespace, and in containers inside of these;
    what is not a model stays as it is. A model that has several places is wrapped once. `methods` count for those that
    have them, `options` are those of `distribute_model`. Collective: every rank. Raises ValueError where no model is in
    it: call it after the models are put there.
    """
    wrapped: dict[int, nn.Module] = {}

    def wrap(model: nn.Module) -> nn.Module:
        if id(model) not in wrapped:
            own = [name for name in methods if hasattr(model, name.partition(".")[0])]
            wrapped[id(model)] = distribute_model(model, methods=own, **options)
        return wrapped[id(model)]

    result: ModelsT = _replaced(models, wrap)
    if not wrapped:
        raise ValueError(f"no model is in this {type(models).__name__} yet; call distribute_models after it is filled")
    return result


def _replaced(held: Any, wrap: Callable[[nn.Module], nn.Module]) -> Any:
    """Return what is given with other models in it: in place, but for a tuple."""
    if isinstance(held, nn.Module) and not isinstance(held, (nn.ModuleDict, nn.ModuleList)):
        return wrap(held)
    if isinstance(held, tuple):
        parts = [_replaced(part, wrap) for part in held]
        return type(held)(*parts) if hasattr(held, "_fields") else type(held)(parts)
    if isinstance(held, (MutableMapping, nn.ModuleDict)):
        entries: Any = held
        places = list(held)
    elif isinstance(held, (MutableSequence, nn.ModuleList)):
        entries, places = held, list(range(len(held)))
    elif isinstance(held, (SimpleNamespace, argparse.Namespace)):
        entries, places = vars(held), list(vars(held))
    else:
        return held
    for place in places:
        part = entries[place]
        other = _replaced(part, wrap)
        if other is not part:
            entries[place] = other
    return held


def wrap_ddp(model: nn.Module, **options: Any) -> nn.Module:
    """Return `model` in a DDPWrapper; a model that is not trained as it is."""
    if not any(parameter.requires_grad for parameter in all_parameters(model)):
        return model
    if get_option("find_unused_parameters"):
        options.setdefault("find_unused_parameters", True)
    return DDPWrapper(model, **options)


STRATEGIES: dict[str, Callable[..., nn.Module]] = {"ddp": wrap_ddp}  # rd.strategies puts the others in
# What RETROFIT_STRATEGY can ask for in a script that knows of no strategy; the sharded models put fsdp in.
BY_ENVIRONMENT: dict[str, Callable[..., nn.Module]] = {"auto": wrap_ddp, "ddp": wrap_ddp}


def _wrapper_by_environment() -> Callable[..., nn.Module]:
    """Return what wraps a model as RETROFIT_STRATEGY says. Raises ValueError for a value that means nothing here."""
    asked = os.environ.get(STRATEGY_TWIN) or "auto"
    if asked in BY_ENVIRONMENT:
        return BY_ENVIRONMENT[asked]
    if asked == "fsdp":
        raise ValueError(
            f"{STRATEGY_TWIN}=fsdp needs a part that {__file__} does not have; this puts it there and changes nothing "
            "else: retrofit convert SCRIPT --with fsdp --update-runtime"
        )
    raise ValueError(
        f"{STRATEGY_TWIN}={asked} is unknown here; use one of: auto, ddp, fsdp; a training loop that is written for "
        "rd.strategies names the others itself: rd.distribute_model(model, strategy=...)"
    )


def distribute_parameter(tensor: TensorT) -> TensorT:
    """Return `tensor`, which an optimizer changes, with rank 0's values and gradients averaged over all ranks.

    For what lies outside the models of `distribute_model`: weights of several losses, learnt centers. In an uneven last
    batch the ranks count by their numbers of samples. Outside a group, and for a tensor that needs no gradient, nothing
    happens. Collective: every rank, and every backward that reaches the tensor.
    """
    if not is_distributed() or not tensor.requires_grad:
        return tensor
    with torch.no_grad():  # also the values that a script gave it since the last call
        tensor.copy_(broadcast_object(tensor.detach().cpu()))
    hooks = getattr(tensor, "_backward_hooks", None) or {}
    if _average_over_ranks not in hooks.values():
        tensor.register_hook(_average_over_ranks)
    return tensor


@torch.utils.hooks.unserializable_hook  # torch.save leaves it out without a warning
def _average_over_ranks(gradient: torch.Tensor) -> torch.Tensor:
    if is_sharing():  # an evaluation with gradients, which the other ranks are not in
        return gradient
    weight = weight_of()
    return reduce_mean(gradient if weight == 1.0 else gradient * weight)
