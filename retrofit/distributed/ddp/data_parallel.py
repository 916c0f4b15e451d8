"""torch's DataParallel in a script that several processes run: each drives one GPU, and the names stay as they were.

A script that wraps its model in DataParallel reads `model.module` and has `module.` in the names of its checkpoints.
Both stay: its own older checkpoints, and the other scripts of the project, still fit.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

from ..process.environment import read_environment
from ..process.process_group import gpu_index
from .unwrap import ModuleAttributes, strip_wrapper_prefixes, unwrap_model

MODULE_PREFIX = "module."
KEEPS_PREFIX = "keeps_prefix"  # in the __dict__ of a DDPWrapper that takes the place of a DataParallel


class OneDevice(ModuleAttributes, nn.DataParallel):
    """A DataParallel over the GPU of this process alone, until `distribute_model` takes its place.

    Around a model that is wrapped already it stays: `net` has names of its own, and `DataParallel(net)` those with
    `module.`.
    """

    def __init__(self, module: nn.Module) -> None:
        place, count = read_environment(os.environ), torch.cuda.device_count()
        super().__init__(module, device_ids=[gpu_index(place, count)] if torch.cuda.is_available() else None)

    def load_state_dict(self, state_dict: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        return super().load_state_dict(fitting_keys(self, state_dict), *args, **kwargs)

    def named_parameters(self, prefix: str = "", *args: Any, **kwargs: Any) -> Iterator[tuple[str, nn.Parameter]]:
        return self.module.named_parameters(_below(prefix), *args, **kwargs)

    def named_buffers(self, prefix: str = "", *args: Any, **kwargs: Any) -> Iterator[tuple[str, torch.Tensor]]:
        return self.module.named_buffers(_below(prefix), *args, **kwargs)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """In a file it is a DataParallel, which needs nothing of the runtime to be read."""
        return nn.DataParallel, (self.module,)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return OneDevice(copy.deepcopy(self.module, memo))


def data_parallel(kind: type[nn.DataParallel], module: nn.Module, *args: Any, **options: Any) -> nn.Module:
    """Return `kind(module, ...)`, DataParallel or a class derived from it; of several processes each uses its own GPU.

    Without a launcher it is the script's own DataParallel, over the GPUs that it names. `model.module`, the `module.`
    in the names of a checkpoint and `rd.model.is_data_parallel(model)` are the same in both cases.
    """
    if read_environment(os.environ).world_size == 1:
        return kind(module, *args, **options)
    return OneDevice(module)


def _below(prefix: str) -> str:
    """Return the prefix of the names in `module`."""
    return f"{prefix}.module" if prefix else "module"


def is_data_parallel(model: Any) -> bool:
    """Return whether a model is a DataParallel, or in one of several processes what takes its place."""
    return isinstance(model, nn.DataParallel) or bool(getattr(model, "__dict__", {}).get(KEEPS_PREFIX))


def script_model(model: Any) -> Any:
    """Return the model as the script made it: its DataParallel, or the module inside the runtime's own wrapper."""
    return model if is_data_parallel(model) else unwrap_model(model)


def fitting_keys(model: nn.Module, state_dict: Any) -> Any:
    """Return `state_dict` with the names that `model` has: with `module.` before all of them, or of none.

    For checkpoints that were written with DataParallel and are read without it, or the other way round. What fits as
    well without a change, or is not the state of a model, comes back as it is.
    """
    if not isinstance(state_dict, Mapping) or not all(isinstance(key, str) for key in state_dict):
        return state_dict
    own, bare = set(model.state_dict()), strip_wrapper_prefixes(state_dict)
    choices = (state_dict, bare, {MODULE_PREFIX + key: value for key, value in bare.items()})
    return max(choices, key=lambda choice: len(own & set(choice)))  # the first of those that fit as well
