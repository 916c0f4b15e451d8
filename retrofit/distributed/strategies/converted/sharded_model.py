"""A model whose parameters, gradients and optimizer state are sharded over the ranks, in a script that knows of none.

`RETROFIT_STRATEGY=fsdp` shards what `distribute_model` is given by torch's `fully_shard`. The training is that of DDP;
states are whole where the script saves and loads them, whichever ranks do so (see rendezvous.py).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, nullcontext
from functools import cache, partial
from itertools import count
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from ...collectives import reduce_mean
from ...data.batch import weight_of
from ...ddp.entry_points import as_forward
from ...ddp.forward_guard import guard_layers, is_running_forward, running_alone, running_forward
from ...ddp.gradients import scale_gradients, tensors_in
from ...ddp.model import BY_ENVIRONMENT, SHARDED_NUMBER
from ...ddp.sync_batchnorm import own_statistics
from ...ddp.unwrap import all_named_parameters, all_parameters, strip_wrapper_prefixes
from ...ddp.wrapper import broadcast_buffers
from ...evaluation import is_sharing
from ...failure.watchdog import place_of_error
from ...process.process_group import get_world_size
from .blocks import sharded_blocks
from .rendezvous import EVALUATION, STATE, TRAINING, WHOLE, arrive, follow_collectives, offer, script_line
from .replaced import put_shards_in_place
from .states import follow_model, follow_optimizers, help_with_state
from .torch_fsdp import is_sharded, torch_fsdp

INSTEAD = "train with RETROFIT_STRATEGY=ddp"

_numbers = count()


class ShardedModel(nn.Module):
    """What a sharded model does in addition to its own class: it meets the other ranks before each forward.

    Without gradients, and in evaluation mode while batches of `share_batches` are used, ranks may make different
    numbers of calls; the others help. Collective: every rank, for every forward with gradients and every backward.
    """

    def __call__(self, *inputs: Any, **kwargs: Any) -> Any:
        number = self.__dict__.get(SHARDED_NUMBER)
        if number is None or is_running_forward():
            return super().__call__(*inputs, **kwargs)
        name = f"a forward of {type(self).__name__}"
        if not torch.is_grad_enabled() or (is_sharing() and not self.training):
            is_joint = arrive(EVALUATION, number, name)
            statistics = own_statistics(self) if is_sharing() else nullcontext()
            with torch.no_grad(), running_forward(), nullcontext() if is_joint else whole(self), statistics:
                return super().__call__(*inputs, **kwargs)
        arrive(TRAINING, number, f"{name} with gradients")
        if any(True for _ in self.buffers()):
            broadcast_buffers(self)
        weight = weight_of(inputs, kwargs)
        if weight not in (0.0, 1.0):
            inputs, kwargs = scale_gradients((inputs, kwargs), 1.0 / weight)
        with running_forward():
            output = super().__call__(*inputs, **kwargs)
        output = output if weight == 1.0 else scale_gradients(output, weight)
        _refuse_second_derivatives(output, f"{name} at {script_line()}")
        return output

    def train(self, mode: bool = True) -> Any:
        if not mode and self.__dict__.get("broadcasts_before_evaluation"):
            broadcast_buffers(self)
        return super().train(mode)

    def load_state_dict(self, state_dict: Any, *args: Any, **kwargs: Any) -> Any:
        own = {name for name, _ in all_named_parameters(self)}
        state = state_dict if own & set(state_dict) else strip_wrapper_prefixes(state_dict)
        return super().load_state_dict(state, *args, **kwargs)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Accumulate gradients in the block without a reduction over ranks, as DDP's."""
        self.set_requires_gradient_sync(False)  # type: ignore[operator]
        try:
            yield
        finally:
            self.set_requires_gradient_sync(True)  # type: ignore[operator]

    def __deepcopy__(self, memo: Any) -> Any:
        raise RuntimeError(
            f"{script_line()}: RETROFIT_STRATEGY=fsdp cannot copy a model whose parameters are sharded (an average of "
            f"the weights, a teacher, the best model so far); copy its state_dict(), or {INSTEAD}"
        )

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise RuntimeError(
            f"{script_line()}: RETROFIT_STRATEGY=fsdp cannot save a whole model whose parameters are sharded; save its "
            f"state_dict(), or {INSTEAD}"
        )


def shard_model(
    model: nn.Module, *, methods: Collection[str] = (), find_unused_parameters: bool | None = None, **options: Any
) -> nn.Module:
    """Shard `model` over the ranks, in place, and return it; a model that is not trained stays whole.

    `methods` of `distribute_model`; `find_unused_parameters` is DDP's, and not needed. Collective: every rank.

    Raises ValueError for what cannot be sharded, RuntimeError for parameters that an optimizer or a list has already.
    """
    is_trained = any(parameter.requires_grad for parameter in all_parameters(model))
    if isinstance(model, ShardedModel) or not is_trained or get_world_size() == 1:
        return model
    _refuse_unshardable(model, methods, options)
    follow_collectives()
    follow_optimizers()
    explain_mixed_tensors()
    for tensor in (*all_parameters(model), *model.buffers()):
        dist.broadcast(tensor.detach(), src=0)
    before = dict(all_named_parameters(model))
    _fully_shard(model)
    number = next(_numbers)
    model.__class__ = _sharded_class(type(model), methods)
    model.__dict__[SHARDED_NUMBER] = number
    guard_layers(model)
    follow_model(model, number)
    offer(number, model, {EVALUATION: _help_run, WHOLE: _help_run, STATE: help_with_state})
    shards = {id(before[name]): parameter for name, parameter in all_named_parameters(model)}
    put_shards_in_place({key: shard for key, shard in shards.items() if key != id(shard)}, before)
    return model


def _refuse_unshardable(model: nn.Module, methods: Collection[str], options: dict[str, Any]) -> None:
    name, line = type(model).__name__, script_line()
    if options:
        raise ValueError(f"{line}: {', '.join(options)} of distribute_model is DDP's own option; {INSTEAD}")
    if "_orig_mod" in model._modules:
        raise ValueError(f"{line}: torch.compile comes after rd.distribute_model under RETROFIT_STRATEGY=fsdp")
    layers = [method for method in methods if isinstance(getattr(model, method, None), nn.Module)]
    if layers:
        raise ValueError(
            f"{line}: this training calls layers of {name} by themselves ({', '.join(layers)}), and "
            f"RETROFIT_STRATEGY=fsdp gathers them with the whole model; call them in a method of it, or {INSTEAD}"
        )
    if any(parameter._backward_hooks for parameter in all_parameters(model)):
        raise ValueError(f"{line}: a parameter of {name} has a hook on its gradient, which sharding loses; {INSTEAD}")
    if any(getattr(part, "sparse", False) is True for part in model.modules()):
        raise ValueError(f"{line}: {name} has a layer with sparse gradients, which fsdp cannot reduce; {INSTEAD}")


def _fully_shard(model: nn.Module) -> None:
    from torch.distributed.device_mesh import init_device_mesh  # type: ignore[import-not-found]  # torch 2.1 lacks it

    fsdp = torch_fsdp()
    device = next(all_parameters(model)).device.type
    options: dict[str, Any] = {"mesh": init_device_mesh(device, (get_world_size(),)), "reshard_after_forward": True}
    numbers = {parameter for parameter in all_parameters(model) if parameter.dim() == 0}  # which cannot be sharded
    if numbers:
        options["ignored_params"] = numbers
    for parameter in numbers:
        if parameter.requires_grad:
            parameter.register_hook(reduce_mean)
    for block in sharded_blocks(model):
        fsdp.fully_shard(block, **options)
    fsdp.fully_shard(model, **options)


def _refuse_second_derivatives(output: Any, call: str) -> None:
    """Let a gradient of a gradient of this output be an error: the whole parameters are gone by then."""

    def check(gradient: torch.Tensor) -> None:
        if torch.is_grad_enabled():
            raise RuntimeError(
                f"{call}: RETROFIT_STRATEGY=fsdp cannot take a gradient of a gradient (create_graph=True, as for a "
                f"gradient penalty); {INSTEAD}"
            )

    for tensor in tensors_in(output):
        if tensor.requires_grad:
            tensor.register_hook(check)


def _sharded_class(kind: type[Any], methods: Collection[str]) -> type[Any]:
    """Return a class that is a ShardedModel and `kind`, whose `methods` run as its forward does."""
    entries = {name: _as_forward_of_model(kind, name) for name in methods}
    return type(kind.__name__.removeprefix("FSDP"), (ShardedModel, kind), entries)


def _as_forward_of_model(kind: type[Any], name: str) -> Callable[..., Any]:
    def method(self: Any, *inputs: Any, **kwargs: Any) -> Any:
        own = partial(getattr(kind, name), self)
        if is_running_forward():
            return own(*inputs, **kwargs)
        with as_forward(self, own):
            return self(*inputs, **kwargs)

    return method


def _help_run(model: nn.Module) -> None:
    """Take part in a forward pass, or in another use of the whole model, of another rank."""
    with whole(model):
        pass


@contextmanager
def whole(model: nn.Module) -> Iterator[None]:
    """Run the block with all parameters gathered, so that no call of the model communicates. Collective: every rank."""
    parts: list[Any] = [part for part in model.modules() if is_sharded(part)]
    for part in parts:
        part.set_reshard_after_forward(False, recurse=False)
        part.unshard()
    try:
        yield
    finally:
        for part in parts:
            part.set_reshard_after_forward(True, recurse=False)
            part.reshard()


@contextmanager
def _whole_for_one(model: nn.Module) -> Iterator[None]:
    """Run the block, in which the script itself uses the model, with all parameters gathered."""
    number = model.__dict__.get(SHARDED_NUMBER)
    if number is None:
        yield
        return
    arrive(WHOLE, number, f"a use of {type(model).__name__}")
    with torch.no_grad(), whole(model):
        yield


@cache
def explain_mixed_tensors() -> None:
    """Let the error of a sharded parameter that meets an ordinary tensor say what to do."""
    previous = sys.excepthook

    def explain(kind: Any, error: BaseException, trace: Any) -> None:
        if "mixed torch.Tensor and DTensor" in str(error):
            place = place_of_error(error.with_traceback(trace))
            error.args = (
                f"{error}\nin {place}: a parameter that RETROFIT_STRATEGY=fsdp has sharded meets an ordinary tensor "
                "outside the model's forward (an average of the weights, a penalty on them); use the entries of "
                f"state_dict(), compute it in forward(), or {INSTEAD}",
            )
        previous(kind, error, trace)

    sys.excepthook = explain


BY_ENVIRONMENT.update(fsdp=shard_model)
running_alone.append(_whole_for_one)
