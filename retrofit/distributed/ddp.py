"""DistributedDataParallel that looks like the model it wraps."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from .bypass import guard_layers, running_forward
from .process_group import is_distributed
from .unwrap import strip_wrapper_prefixes, unwrap_model

# What a module keeps of its own: its mode and its hooks, which a new construction would forget.
_MODULE_STATE = tuple(name for name in nn.Module().__dict__ if name not in ("_parameters", "_buffers", "_modules"))


class DDPWrapper(DistributedDataParallel):
    """DistributedDataParallel that looks like the wrapped module; outside a process group, the module itself.

    Attributes, `named_parameters()`, `state_dict()` and `load_state_dict()` are the module's own: names carry no
    `module.` prefix and `model.num_classes` keeps working. Without gradients (evaluation) a call goes straight to the
    module, so ranks may make different numbers of calls; `broadcast_buffers` first. Running layers in training
    by any way other than `model(...)` raises RuntimeError, because their gradients would not be synchronised.
    Parameters may be frozen and thawed at any time (`requires_grad`), by every rank alike: the next forward sees it.

    Collective: every rank, to construct it and for every forward and backward with gradients. Keyword arguments are
    those of DistributedDataParallel; on CUDA `device_ids` defaults to the current device.
    """

    def __new__(cls, module: nn.Module, **ddp_options: Any) -> Any:
        return super().__new__(cls) if is_distributed() else module

    def __init__(self, module: nn.Module, **ddp_options: Any) -> None:
        if torch.cuda.is_available() and next(module.parameters()).is_cuda:
            ddp_options.setdefault("device_ids", [torch.cuda.current_device()])
        self._synchronise(module, ddp_options)
        guard_layers(unwrap_model(module), entered_by_compile=hasattr(module, "_orig_mod"))

    def _synchronise(self, module: nn.Module, ddp_options: dict[str, Any]) -> None:
        """Let DDP watch the parameters that can be trained now: it takes note of them once, when it is constructed."""
        self.__dict__["_is_built"] = False
        super().__init__(module, **ddp_options)
        del self.__dict__["dim"]  # of no use with one device per process, and it would hide the model's own `dim`
        self.__dict__["_is_built"] = True
        self.__dict__["_ddp_options"] = ddp_options
        self.__dict__["_watched"] = _trainable(module)

    def _follow_freezing(self) -> None:
        """Synchronise what was thawed, and wait no longer for what was frozen, since the last forward."""
        kept = {name: self.__dict__[name] for name in _MODULE_STATE if name in self.__dict__}
        kept["require_backward_grad_sync"] = self.require_backward_grad_sync
        self._synchronise(self.module, self.__dict__["_ddp_options"])
        self.__dict__.update(kept)

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return self.module(*inputs, **kwargs)
        trainable = _trainable(self.module)
        if not any(trainable):  # a frozen discriminator: there is nothing to synchronise
            with running_forward():
                return self.module(*inputs, **kwargs)
        if trainable != self.__dict__["_watched"]:
            self._follow_freezing()
        with running_forward(), _naming_unused(self.module):
            return super().forward(*inputs, **kwargs)

    def train(self, mode: bool = True) -> Any:
        if not mode and self.__dict__.get("broadcasts_before_evaluation"):
            broadcast_buffers(self)
        return super().train(mode)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if "module" not in self.__dict__.get("_modules", {}):
                raise
            return getattr(unwrap_model(self), name)

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
        return unwrap_model, (unwrap_model(self),)

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        return unwrap_model(self).state_dict(*args, **kwargs)

    def load_state_dict(self, state_dict: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        return unwrap_model(self).load_state_dict(strip_wrapper_prefixes(state_dict), *args, **kwargs)

    def named_parameters(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, nn.Parameter]]:
        return unwrap_model(self).named_parameters(*args, **kwargs)

    def named_buffers(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, torch.Tensor]]:
        return unwrap_model(self).named_buffers(*args, **kwargs)


def _trainable(module: nn.Module) -> list[bool]:
    return [parameter.requires_grad for parameter in module.parameters()]


@contextmanager
def _naming_unused(module: nn.Module) -> Iterator[None]:
    """Say which parameters the last step left without a gradient, where DDP tells their numbers only."""
    try:
        yield
    except RuntimeError as error:
        listed = re.search(r"did not receive grad for rank \d+: ((?:\d+[ ,]*)+)", str(error))
        if "Expected to have finished reduction" not in str(error) or listed is None:
            raise
        names = [name for name, parameter in module.named_parameters() if parameter.requires_grad]
        unused = ", ".join(names[int(number)] for number in re.findall(r"\d+", listed[1]))
        raise RuntimeError(
            f"parameters that took no part in the last loss: {unused}; take them out of the model (or freeze them "
            "before it is wrapped), or train with --find_unused_parameters (RETROFIT_FIND_UNUSED_PARAMETERS=1)"
        ) from error


def settle_buckets(model: nn.Module, forward_backward: Callable[[], Any]) -> None:
    """Run one training step's forward and backward for nothing, before a checkpoint is restored into `model`.

    DDP lays its gradient buckets out anew after the first step, and with three or more ranks the layout decides in
    which order a sum is rounded. A resumed run is bit-identical only if its buckets have settled as well. The
    gradients are dropped; what else the step changes (BatchNorm statistics) the restored checkpoint overwrites.
    Collective: every rank; nothing happens without a DDP wrapper.
    """
    if isinstance(model, DistributedDataParallel):
        forward_backward()
        model.zero_grad()


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
        dist.broadcast(packed, src=0)
        for buffer, part in zip(same, packed.split([buffer.numel() for buffer in same])):
            buffer.copy_(part.view_as(buffer))
