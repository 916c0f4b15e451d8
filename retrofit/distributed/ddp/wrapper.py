"""DistributedDataParallel that looks like the model it wraps."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch._utils import _flatten_dense_tensors, _take_tensors, _unflatten_dense_tensors
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parallel.scatter_gather import scatter_kwargs

from ..data.batch import end_batches_in_use, weight_for_model
from ..evaluation import is_sharing
from ..process.process_group import group_for, is_distributed
from .consistency import ConsistencyCheck
from .data_parallel import KEEPS_PREFIX, MODULE_PREFIX, OneDevice
from .entry_points import as_forward, enter_through
from .forward_guard import guard_layers, is_running_forward, running_forward
from .gradients import BYTES_AT_ONCE, FIRST_PASSES, FOREVER, GradientSync, scale_gradients
from .sync_batchnorm import own_statistics
from .unwrap import (
    ModuleAttributes,
    all_named_parameters,
    all_parameters,
    reduced_as,
    strip_wrapper_prefixes,
    unwrap_model,
)


def _by_module(name: str) -> Any:
    """Return a method of the wrapper: the module's own where its class has one, which may train a part of itself."""

    def method(self: DDPWrapper, *args: Any, **kwargs: Any) -> Any:
        module = unwrap_model(self)
        if self._keeps_prefix or getattr(type(module), name) is getattr(nn.Module, name):
            return getattr(super(DDPWrapper, self), name)(*args, **kwargs)
        result = getattr(module, name)(*args, **kwargs)
        return self if result is module else result

    method.__name__ = name
    return method


class DDPWrapper(ModuleAttributes, DistributedDataParallel):
    """DistributedDataParallel that looks like the wrapped module; outside a process group, the module itself.

    Attributes, `parameters()`, `state_dict()`, `train()` and other methods are the module's own, without a `module.` in
    names (but see `data_parallel`). Without gradients, and in evaluation mode while batches of `share_batches` are
    used, a call goes straight to the module, so ranks may make different numbers of calls; `broadcast_buffers` first.
    Parameters may be frozen and thawed at any time, on every rank in the same way, and one forward may serve several
    backward passes. A parameter that only some ranks used gets the mean with zeros for the others; without a gradient
    on every rank it keeps None. In an uneven last batch of `distribute_loader` the ranks count by their samples.

    Collective: every rank, to construct it and for every forward and backward with gradients. Keyword arguments are
    those of DistributedDataParallel, and `methods` of `distribute_model`. With `static_graph`, a communication hook of
    your own, or in `join()`, all is left to DDP; with `find_unused_parameters`, what is unused. Raises RuntimeError for
    a layer that is run in training past `model(...)`, and where the ranks' parameters differ (see `ConsistencyCheck`).
    """

    def __new__(cls, module: nn.Module, **options: Any) -> Any:
        return super().__new__(cls) if is_distributed() else module

    def __init__(self, module: nn.Module, *, methods: Collection[str] = (), **ddp_options: Any) -> None:
        named = (*all_named_parameters(module), *nn.Module.named_buffers(module))
        dense = [b for b in nn.Module.buffers(module) if b.layout == torch.strided and b.is_contiguous()]
        for buffer in dense:  # DDP cannot copy to what has the strides of `table.unsqueeze(0).transpose(0, 1)`
            buffer.data = buffer.data.view(-1).view(buffer.shape)
        sparse = [name for name, part in named if part.layout != torch.strided and not part.requires_grad]
        ignored = {*getattr(module, "_ddp_params_and_buffers_to_ignore", ()), *sparse}  # DDP cannot broadcast these
        module.__dict__.update({"_ddp_params_and_buffers_to_ignore": ignored} if sparse else {})
        own = {id(parameter) for name, parameter in all_named_parameters(module) if name in ignored}
        sync = GradientSync([p for p in all_parameters(module) if id(p) not in own], _num_passes(module, ddp_options))
        self.__dict__.update(_gradient_sync=sync, _ddp_options=ddp_options, _comm_hook=None, _has_own_hook=False)
        self._build(module)
        sync.compare = ConsistencyCheck(unwrap_model(module), own, self.process_group).end_of_pass
        if not hasattr(module, "_orig_mod"):  # a hook that reads global state would break a compiled graph
            guard_layers(unwrap_model(module))
        self.__dict__["_methods"] = enter_through(self, unwrap_model(module), methods)

    def __getattr__(self, name: str) -> Any:
        value = super().__getattr__(name)
        return partial(self._run_method, value) if name in self.__dict__.get("_methods", ()) else value

    def _run_method(self, method: Callable[..., Any], *inputs: Any, **kwargs: Any) -> Any:
        """Run a method of the model as its forward pass, or within the one that is running."""
        if is_running_forward():
            return method(*inputs, **kwargs)
        with as_forward(self.module, method):
            return self(*inputs, **kwargs)

    def _build(self, module: nn.Module) -> None:
        """Let DDP take note of what it is to reduce, which it does once, when it is constructed."""
        sync: GradientSync = self.__dict__["_gradient_sync"]
        left_out = [sync.parameters[number] for number in sync.unused]
        self.__dict__["_is_built"] = False
        for parameter in left_out:
            parameter.requires_grad_(False)
        options = dict(self._ddp_options)
        if torch.cuda.is_available() and next(all_parameters(module)).is_cuda:
            options.setdefault("device_ids", [torch.cuda.current_device()])
        try:
            super().__init__(module, **options)
        finally:
            for parameter in left_out:
                parameter.requires_grad_(True)
        del self.__dict__["dim"]  # of no use with one device per process, and it would hide the model's own `dim`
        self.__dict__.update(_is_built=True, _built=sync.wanted_of_ddp(), _placed=_placement(module))
        sync.reducer, sync.group = self.reducer, self.process_group
        sync.by_ddp = [] if self.find_unused_parameters else self._built

    def _follow_changes(self) -> None:
        """Let DDP reduce what was thawed, moved or is used, and wait no longer for what was frozen or never used."""
        sync: GradientSync = self._gradient_sync
        sync.follow_freezing()
        is_moved = self._placed != _placement(self.module)
        if is_moved:
            sync.look_again()
        elif sync.is_looking or self._built == sync.wanted_of_ddp():
            return
        own_state = (*nn.Module().__dict__, "require_backward_grad_sync")  # mode and hooks, which would be forgotten
        kept = {name: self.__dict__[name] for name in own_state if name in self.__dict__}
        self._build(self.module)
        self.__dict__.update(kept)
        if self._comm_hook:
            super().register_comm_hook(*self._comm_hook)

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        sync: GradientSync = self._gradient_sync
        if not torch.is_grad_enabled() or (is_sharing() and not self.training):
            return self._forward_alone(inputs, kwargs)
        if not any(parameter.requires_grad for parameter in all_parameters(self.module)):
            with running_forward():  # a frozen discriminator: there is nothing to synchronise
                return self.module(*inputs, **kwargs)
        if self._join_config.enable:  # ranks that have run out of batches follow DDP's own steps only
            sync.leave_to_ddp()
        self._follow_changes()
        weight = weight_for_model(inputs, kwargs)
        if weight not in (0.0, 1.0):  # what flows on into another model, which weighs for itself, is as it was
            inputs, kwargs = scale_gradients((inputs, kwargs), 1.0 / weight)
        sync.is_wanted = self.require_backward_grad_sync and not self._is_left_to_ddp
        sync.is_armed = sync.is_wanted and not sync.is_looking
        with running_forward():
            if sync.is_wanted and sync.is_looking:
                output = self._forward_unreduced(inputs, kwargs)
            else:
                output = super().forward(*inputs, **kwargs)
        if sync.is_wanted:
            return sync.watch(output, weight)
        return output if weight == 1.0 else scale_gradients(output, weight)

    @property
    def _is_left_to_ddp(self) -> bool:
        return bool(self._join_config.enable or self.static_graph or self._has_own_hook)

    def expect_backward(self) -> None:
        """Average at the end of the next backward pass what a layer outside the model's forward gives gradients."""
        self._gradient_sync.follow_freezing()
        self._gradient_sync.is_wanted = self.require_backward_grad_sync and not self._is_left_to_ddp

    def _forward_unreduced(self, inputs: Any, kwargs: Any) -> Any:
        """Run a forward after which DDP leaves the gradients alone."""
        self.require_backward_grad_sync = False
        try:
            return super().forward(*inputs, **kwargs)
        finally:
            self.require_backward_grad_sync = self.require_forward_param_sync = True

    def _forward_alone(self, inputs: Any, kwargs: Any) -> Any:
        """Run a forward of an evaluation, in which the other ranks take no part."""
        if self._keeps_prefix and self.device_ids:  # as DataParallel does; with gradients DDP itself does so
            moved, named = scatter_kwargs(inputs, kwargs, self.device_ids)
            inputs, kwargs = moved[0] if moved else inputs, named[0] if named else kwargs
        self._gradient_sync.is_wanted = self._gradient_sync.is_wanted and not is_sharing()
        if not self.training:
            end_batches_in_use()
        with running_forward(), own_statistics(self.module) if is_sharing() else nullcontext():
            return self.module(*inputs, **kwargs)

    def register_comm_hook(self, state: Any, hook: Callable[..., Any]) -> None:
        """Let gradients travel by a hook of your own; what it leaves on each rank is then its own affair."""
        super().register_comm_hook(state, hook)
        self.__dict__.update(_comm_hook=(state, hook), _has_own_hook=True)
        self._gradient_sync.leave_to_ddp()

    def train(self, *args: Any, **kwargs: Any) -> Any:
        self._set_mode([*args, *kwargs.values(), True][0], "train", *args, **kwargs)
        return self

    def eval(self) -> Any:
        self._set_mode(False, "train" if self._keeps_prefix else "eval", *([False] if self._keeps_prefix else []))
        return self

    def _set_mode(self, mode: bool, method: str, *args: Any, **kwargs: Any) -> None:
        """Switch the mode by the module's own method, which may leave a frozen part as it is, or take no argument."""
        if not mode and self.__dict__.get("broadcasts_before_evaluation"):
            broadcast_buffers(self)
        getattr(self.module, method)(*args, **kwargs)
        self.training = mode

    parameters, buffers = _by_module("parameters"), _by_module("buffers")
    zero_grad, requires_grad_, apply = _by_module("zero_grad"), _by_module("requires_grad_"), _by_module("apply")
    to, cuda, cpu, type = _by_module("to"), _by_module("cuda"), _by_module("cpu"), _by_module("type")
    float, half, double, bfloat16 = map(_by_module, ("float", "half", "double", "bfloat16"))

    def __getitem__(self, index: Any) -> Any:
        return unwrap_model(self)[index]  # type: ignore[index]

    def __len__(self) -> int:
        return len(unwrap_model(self))  # type: ignore[arg-type]

    def __bool__(self) -> bool:
        return True  # as a module without a length is

    def __iter__(self) -> Iterator[Any]:
        return iter(unwrap_model(self))  # type: ignore[call-overload]

    def __setattr__(self, name: str, value: Any) -> None:
        if not self.__dict__.get("_is_built") or name in self.__dict__ or hasattr(type(self), name):
            super().__setattr__(name, value)
        elif isinstance(value, (nn.Module, nn.Parameter)):
            raise RuntimeError(
                f"model.{name} was replaced after wrapping, so DDP would not synchronise the new parameters; "
                "change the model before distribute_model / DDPWrapper"
            )
        else:
            setattr(unwrap_model(self), name, value)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """A copy or a pickle is of the module alone: an EMA, a teacher, a whole model in a file."""
        module = unwrap_model(self)
        return (nn.DataParallel, (module,)) if self._keeps_prefix else reduced_as(module, protocol)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        copied = copy.deepcopy(unwrap_model(self), memo)
        return OneDevice(copied) if self._keeps_prefix else copied

    @property
    def _keeps_prefix(self) -> bool:
        """Whether it takes the place of a DataParallel, with `module.` in its names: see `data_parallel`."""
        return bool(self.__dict__.get(KEEPS_PREFIX))

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        if self._keeps_prefix:
            kwargs["prefix"] = kwargs.get("prefix", "") + MODULE_PREFIX
        return unwrap_model(self).state_dict(*args, **kwargs)

    def load_state_dict(self, state_dict: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        return unwrap_model(self).load_state_dict(strip_wrapper_prefixes(state_dict), *args, **kwargs)

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any, **kwargs: Any) -> None:
        """As part of another module that loads its own: the names are those without this wrapper."""
        own = [key for key in state_dict if key.startswith(prefix) and not key.startswith(prefix + MODULE_PREFIX)]
        for key in own:
            state_dict[prefix + MODULE_PREFIX + key[len(prefix) :]] = state_dict.pop(key)
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)

    def named_parameters(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, nn.Parameter]]:
        named: Any = super() if self._keeps_prefix else unwrap_model(self)
        return named.named_parameters(*args, **kwargs)

    def named_buffers(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, torch.Tensor]]:
        named: Any = super() if self._keeps_prefix else unwrap_model(self)
        return named.named_buffers(*args, **kwargs)


def _placement(module: nn.Module) -> list[tuple[torch.device, torch.dtype]]:
    """Return where parameters are, and of which type: a model may be moved after it was wrapped."""
    return [(parameter.device, parameter.dtype) for parameter in all_parameters(module)]


def _num_passes(module: nn.Module, ddp_options: Mapping[str, Any]) -> int:
    """Return in how many backward passes the ranks look which parameters are used."""
    if ddp_options.get("static_graph") or ddp_options.get("find_unused_parameters"):
        return 0
    is_sparse = any(layer.sparse for layer in module.modules() if isinstance(layer, (nn.Embedding, nn.EmbeddingBag)))
    return FOREVER if is_sparse else 0 if "find_unused_parameters" in ddp_options else FIRST_PASSES


@torch.no_grad()
def broadcast_buffers(model: nn.Module) -> None:
    """Give every rank rank 0's buffers (BatchNorm statistics), the ones a checkpoint holds. Collective: every rank.

    DDP does this at the start of each training forward; before an evaluation the last step's update is still local.
    """
    dense = [b for b in unwrap_model(model).buffers() if not b.is_sparse] if is_distributed() else []
    for buffers in _take_tensors(dense, BYTES_AT_ONCE):
        packed = _flatten_dense_tensors(buffers)
        dist.broadcast(packed, src=0, group=group_for(packed))
        for buffer, part in zip(buffers, _unflatten_dense_tensors(packed, buffers)):
            buffer.copy_(part)
