"""DistributedDataParallel that looks like the model it wraps."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parallel.scatter_gather import scatter_kwargs

from ..evaluation import is_sharing
from ..process_group import group_for, is_distributed
from .after_backward import AfterBackward
from .average_gradients import average_gradients
from .consistency import ConsistencyCheck, resolve_consistency
from .data_parallel import KEEPS_PREFIX, PREFIX, OneDevice
from .forward_guard import guard_layers, running_forward
from .sync_batchnorm import own_statistics
from .unwrap import ModuleAttributes, strip_wrapper_prefixes, unwrap_model
from .used_parameters import FIRST_PASSES, FOREVER, MissingGradients, UsedParameters, unfinished

IGNORED = "_ddp_params_and_buffers_to_ignore"  # where DDP looks for names of parameters to leave out

# What a module keeps of its own: its mode and its hooks, which a new construction would forget.
_MODULE_STATE = tuple(name for name in nn.Module().__dict__ if name not in ("_parameters", "_buffers", "_modules"))


class DDPWrapper(ModuleAttributes, DistributedDataParallel):
    """DistributedDataParallel that looks like the wrapped module; outside a process group, the module itself.

    Attributes, `named_parameters()`, `state_dict()` and `load_state_dict()` are the module's own: names carry no
    `module.` prefix (but see `data_parallel`) and `model.num_classes` keeps working. Without gradients, and in
    evaluation mode while batches of `share_batches` are used, a call goes straight to the module, so ranks may make
    different numbers of calls; `broadcast_buffers` first. Running
    layers in training by any way other than `model(...)` raises RuntimeError, because their gradients would not be
    synchronised. Parameters may be frozen and thawed at any time (`requires_grad`), on every rank in the same way: the
    next forward sees it.
    One forward may serve several backward passes (`retain_graph=True`): the gradients of each are averaged over ranks.
    A parameter without a gradient on every rank keeps None, as in one process; one that only some ranks used gets the
    mean with zeros for the others.
    Every now and then the ranks compare their parameters (RETROFIT_CONSISTENCY, see `ConsistencyCheck`) at the end of
    a backward pass and stop where they differ.

    Collective: every rank, to construct it and for every forward and backward with gradients. Keyword arguments are
    those of DistributedDataParallel; on CUDA `device_ids` defaults to the current device.
    """

    def __new__(cls, module: nn.Module, **ddp_options: Any) -> Any:
        return super().__new__(cls) if is_distributed() else module

    def __init__(self, module: nn.Module, **ddp_options: Any) -> None:
        if torch.cuda.is_available() and next(module.parameters()).is_cuda:
            ddp_options.setdefault("device_ids", [torch.cuda.current_device()])
        own: dict[str, Any] = {
            "_never_synchronised": set(getattr(module, IGNORED, ())),
            "_has_own_hook": False,  # by which gradients travel
            "_is_armed": False,  # whether DDP reduces the gradients of the next backward pass
            "_is_wanted": False,  # whether gradients are to be the same on all ranks after it
            "_has_missed": False,  # whether this rank lacked gradients that DDP waits for
            "_missing": MissingGradients(),
            "_used": UsedParameters([*module.parameters()], num_passes=0),
        }
        self._synchronise(module, ddp_options)
        self.__dict__.update(own)
        guard_layers(unwrap_model(module), entered_by_compile=hasattr(module, "_orig_mod"))
        self.__dict__["_consistency"] = ConsistencyCheck(self, self.process_group, resolve_consistency())
        self.__dict__["_after_backward"] = AfterBackward(self._complete_reduction, self._end_of_backward)
        if _has_sparse_gradients(module):
            self.look_for_unused(FOREVER)

    def look_for_unused(self, num_passes: int = FIRST_PASSES) -> None:
        """Find out in the first backward passes which parameters the losses depend on, see used_parameters.py.

        Until the ranks agree, gradients are averaged at the end of backward instead of during it. Every rank must call
        it, before the training.
        """
        if self.find_unused_parameters or self.static_graph or self.__dict__["_has_own_hook"]:
            return
        self.__dict__["_used"].stop_looking()
        self.__dict__["_used"] = UsedParameters([*self.module.parameters()], num_passes)
        self.__dict__["_used"].look(self._reached)

    def _synchronise(self, module: nn.Module, ddp_options: dict[str, Any], unused: Sequence[Any] = ()) -> None:
        """Let DDP watch the parameters that can be trained now: it takes note of them once, when it is constructed."""
        self.__dict__["_is_built"] = False
        with _ignoring(module, unused):
            super().__init__(module, **ddp_options)
        del self.__dict__["dim"]  # of no use with one device per process, and it would hide the model's own `dim`
        self.__dict__["_is_built"] = True
        self.__dict__["_ddp_options"] = ddp_options
        self.__dict__["_watched"] = _trainable(module), set(unused)

    def _follow_changes(self, now_trainable: list[bool]) -> None:
        """Synchronise what was thawed or is used, and wait no longer for what was frozen or never used."""
        used: UsedParameters = self.__dict__["_used"]
        trainable, unused = self.__dict__["_watched"]
        is_frozen = used.was_frozen() if used.num_passes else False
        if is_frozen:
            used.look(self._reached)
        if used.is_looking or (trainable == now_trainable and unused == set(used.unused)):
            return
        kept = {name: self.__dict__[name] for name in _MODULE_STATE if name in self.__dict__}
        kept["require_backward_grad_sync"] = self.require_backward_grad_sync
        self._synchronise(self.module, self.__dict__["_ddp_options"], used.unused)
        self.__dict__.update(kept)
        if "_comm_hook" in self.__dict__:
            super().register_comm_hook(*self.__dict__["_comm_hook"])

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled() or (is_sharing() and not self.training):
            return self._forward_alone(inputs, kwargs)
        trainable = _trainable(self.module)
        if not any(trainable):  # a frozen discriminator: there is nothing to synchronise
            with running_forward():
                return self.module(*inputs, **kwargs)
        if self._join_config.enable:
            self.__dict__["_used"].stop_looking()  # ranks that have run out of batches follow DDP's own steps only
        self._follow_changes(trainable)
        is_watched = not (self._join_config.enable or self.static_graph or self.__dict__["_has_own_hook"])
        self.__dict__["_is_wanted"] = is_watched and self.require_backward_grad_sync
        with running_forward(), _naming_unused(self.module):
            if not self.__dict__["_is_wanted"]:
                return super().forward(*inputs, **kwargs)
            is_looking = self.__dict__["_used"].is_looking
            self.__dict__["_is_armed"] = not is_looking
            output = self._forward_unreduced(inputs, kwargs) if is_looking else super().forward(*inputs, **kwargs)
        return self.__dict__["_after_backward"].watch(output)

    def _forward_alone(self, inputs: Any, kwargs: Any) -> Any:
        """Run a forward of an evaluation, in which the other ranks take no part."""
        inputs, kwargs = self._moved(inputs, kwargs)
        if not is_sharing():
            return self.module(*inputs, **kwargs)
        self.__dict__["_is_wanted"] = False
        with running_forward(), own_statistics(self.module):
            return self.module(*inputs, **kwargs)

    def _forward_unreduced(self, inputs: Any, kwargs: Any) -> Any:
        """Run a forward after which DDP leaves the gradients alone."""
        self.require_backward_grad_sync = False
        try:
            return super().forward(*inputs, **kwargs)
        finally:
            self.require_backward_grad_sync = self.require_forward_param_sync = True

    def _reached(self, gradient: torch.Tensor) -> None:
        if self.__dict__["_is_wanted"]:
            self.__dict__["_after_backward"].reached(gradient)

    def _complete_reduction(self) -> None:
        if not self.__dict__["_is_armed"]:
            return
        if self.__dict__["_missing"].complete(self.reducer, lambda: _of_reducer(self)):
            self.__dict__["_has_missed"] = True

    def _end_of_backward(self) -> None:
        """Average what DDP did not, and let the ranks agree on what they use. Collective: every rank."""
        state, used = self.__dict__, self.__dict__["_used"]
        state["_missing"].restore()
        is_changed = False
        if state["_is_armed"]:
            is_changed = used.average_unused(self.process_group, state["_has_missed"])
        elif used.is_looking:
            if used.average(self.process_group):
                used.stop_looking()
        else:  # DDP reduces the first backward pass after a forward only
            average_gradients([p for p in used.parameters if p.requires_grad], self.process_group)
        state["_is_armed"] = state["_is_wanted"] = False
        if state["_consistency"].end_of_pass(state["_has_missed"]) or is_changed:
            state["_has_missed"] = False
            used.keep_looking()
            used.look(self._reached)

    def register_comm_hook(self, state: Any, hook: Callable[..., Any]) -> None:
        """Let gradients travel by a hook of your own; what it leaves on each rank is then its own affair."""
        super().register_comm_hook(state, hook)
        self.__dict__.update(_comm_hook=(state, hook), _has_own_hook=True)
        self.__dict__["_used"].stop_looking()

    def _moved(self, inputs: Any, kwargs: Any) -> Any:
        """Move what the module is called with to its GPU, as DataParallel does; with gradients DDP does so itself."""
        if not self._keeps_prefix or not self.device_ids:
            return inputs, kwargs
        moved, named = scatter_kwargs(inputs, kwargs, self.device_ids)
        return moved[0] if moved else inputs, named[0] if named else kwargs

    def train(self, mode: bool = True) -> Any:
        if not mode and self.__dict__.get("broadcasts_before_evaluation"):
            broadcast_buffers(self)
        return super().train(mode)

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
            return
        if isinstance(value, (nn.Module, nn.Parameter)):
            raise RuntimeError(
                f"model.{name} was replaced after wrapping, so DDP would not synchronise the new parameters; "
                "change the model before wrap_model / DDPWrapper"
            )
        setattr(unwrap_model(self), name, value)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """A copy or a pickle is of the module alone: an EMA, a teacher, a whole model in a file."""
        return nn.DataParallel if self._keeps_prefix else unwrap_model, (unwrap_model(self),)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        copied = copy.deepcopy(unwrap_model(self), memo)
        return OneDevice(copied) if self._keeps_prefix else copied

    @property
    def _keeps_prefix(self) -> bool:
        """Whether it takes the place of a DataParallel, with `module.` in its names: see `data_parallel`."""
        return bool(self.__dict__.get(KEEPS_PREFIX))

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        if self._keeps_prefix:
            kwargs["prefix"] = kwargs.get("prefix", "") + PREFIX
        return unwrap_model(self).state_dict(*args, **kwargs)

    def load_state_dict(self, state_dict: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        return unwrap_model(self).load_state_dict(strip_wrapper_prefixes(state_dict), *args, **kwargs)

    def named_parameters(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, nn.Parameter]]:
        if self._keeps_prefix:
            return super().named_parameters(*args, **kwargs)
        return unwrap_model(self).named_parameters(*args, **kwargs)

    def named_buffers(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, torch.Tensor]]:
        if self._keeps_prefix:
            return super().named_buffers(*args, **kwargs)
        return unwrap_model(self).named_buffers(*args, **kwargs)


def _trainable(module: nn.Module) -> list[bool]:
    return [parameter.requires_grad for parameter in module.parameters()]


def _of_reducer(model: DDPWrapper) -> list[nn.Parameter]:
    """Return the parameters that DDP reduces, in its order."""
    unused: set[nn.Parameter] = model.__dict__["_watched"][1]
    ignored: set[str] = model.__dict__["_never_synchronised"]
    return [
        parameter
        for name, parameter in model.module.named_parameters()
        if parameter.requires_grad and name not in ignored and parameter not in unused
    ]


def _has_sparse_gradients(module: nn.Module) -> bool:
    layers = [layer for layer in module.modules() if isinstance(layer, (nn.Embedding, nn.EmbeddingBag))]
    return any(layer.sparse for layer in layers)


@contextmanager
def _ignoring(module: nn.Module, parameters: Sequence[nn.Parameter]) -> Iterator[None]:
    """Let DDP leave these parameters out, which it knows by their names, those of the outermost module twice."""
    if not parameters:
        yield
        return
    left_out, before = set(parameters), getattr(module, IGNORED, None)
    names = [
        f"{path}.{name}"
        for path, part in module.named_modules(remove_duplicate=False)
        for name, parameter in part.named_parameters(recurse=False)
        if parameter in left_out
    ]
    setattr(module, IGNORED, [*(before or ()), *names, *(name.lstrip(".") for name in names)])
    try:
        yield
    finally:
        if before is None:
            delattr(module, IGNORED)
        else:
            setattr(module, IGNORED, before)


@contextmanager
def _naming_unused(module: nn.Module) -> Iterator[None]:
    """Say which parameters the last step left without a gradient, where DDP tells their numbers only."""
    try:
        yield
    except RuntimeError as error:
        numbers = unfinished(error)
        if numbers is None:
            raise
        names = [name for name, parameter in module.named_parameters() if parameter.requires_grad]
        unused = ", ".join(names[number] for number in numbers)
        raise RuntimeError(
            f"parameters that took no part in the last loss: {unused}; take them out of the model (or freeze them "
            "before it is wrapped), or train with --find_unused_parameters (RETROFIT_FIND_UNUSED_PARAMETERS=1)"
        ) from error


@torch.no_grad()
def broadcast_buffers(model: nn.Module) -> None:
    """Give every rank rank 0's buffers (BatchNorm statistics), the ones a checkpoint holds. Collective: every rank.

    DDP does this at the start of each training forward; before an evaluation the last step's update is still local.
    """
    if not is_distributed():
        return
    buffers = list(unwrap_model(model).buffers())
    for dtype in sorted({buffer.dtype for buffer in buffers}, key=str):
        same = [buffer for buffer in buffers if buffer.dtype == dtype]
        packed = torch.cat([buffer.flatten() for buffer in same])
        dist.broadcast(packed, src=0, group=group_for(packed))
        for buffer, part in zip(same, packed.split([buffer.numel() for buffer in same])):
            buffer.copy_(part.view_as(buffer))
