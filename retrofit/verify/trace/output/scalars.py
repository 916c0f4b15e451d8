"""The curves that the script logs with tensorboardX, torch.utils.tensorboard or wandb, none of which is imported."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import ModuleType
from typing import Any

from retrofit.verify.trace.after_import import after_import
from retrofit.verify.trace.events import Event, LoggedScalar, Record

from .place import place_of_caller


def install_scalars(record: Record, project: str) -> None:
    """Record a LoggedScalar for each number that is logged, also by libraries that are imported later."""

    def place(event: Event) -> None:
        record(replace(event, where=place_of_caller(project)) if isinstance(event, LoggedScalar) else event)

    for name in ("tensorboardX.writer", "torch.utils.tensorboard.writer"):
        after_import(name, functools.partial(_wrap_writer, place))
    after_import("wandb", functools.partial(_wrap_wandb, place))


def _wrap_writer(record: Record, module: ModuleType) -> None:
    writer = module.SummaryWriter
    add_scalar, add_scalars = writer.add_scalar, writer.add_scalars

    @functools.wraps(add_scalar)
    def traced_scalar(
        self: Any, tag: Any, scalar_value: Any, global_step: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        result = add_scalar(self, tag, scalar_value, global_step, *args, **kwargs)
        _record(record, tag, scalar_value, global_step)
        return result

    @functools.wraps(add_scalars)
    def traced_scalars(
        self: Any, main_tag: Any, tag_scalar_dict: Any, global_step: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        result = add_scalars(self, main_tag, tag_scalar_dict, global_step, *args, **kwargs)
        for tag, value in tag_scalar_dict.items():
            _record(record, f"{main_tag}/{tag}", value, global_step)
        return result

    def no_graph(self: Any, *args: Any, **kwargs: Any) -> None:
        """Draw nothing: a model whose operators are watched cannot be traced a second time."""

    writer.add_scalar, writer.add_scalars, writer.add_graph = traced_scalar, traced_scalars, no_graph


def _wrap_wandb(record: Record, module: ModuleType) -> None:
    init: Callable[..., Any] = module.init

    @functools.wraps(init)
    def traced_init(*args: Any, **kwargs: Any) -> Any:
        run = init(*args, **kwargs)
        if kwargs.get("mode") == "disabled" and os.environ.get("RANK", "0") != "0":
            return run  # the script's own choice for this rank, where WANDB_MODE is that of these runs
        # On the run and not on its class: a disabled run has a `log` of its own.
        if run is not None and not hasattr(run.log, "is_traced"):
            run.log = _traced_log(record, run.log)
            if module.run is run:
                module.log = run.log  # type: ignore[attr-defined]
        return run

    module.init = traced_init  # type: ignore[attr-defined]


def _traced_log(record: Record, log: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(log)
    def traced(data: Any, step: Any = None, *args: Any, **kwargs: Any) -> Any:
        result = log(data, step, *args, **kwargs)
        _record_all(record, "", data, step)
        return result

    traced.is_traced = True  # type: ignore[attr-defined]
    return traced


def _record_all(record: Record, name: str, data: Any, axis: Any) -> None:
    if isinstance(data, Mapping):
        for key, value in data.items():
            _record_all(record, f"{name}/{key}" if name else str(key), value, axis)
    else:
        _record(record, name, data, axis)


def _record(record: Record, name: Any, value: Any, axis: Any) -> None:
    """Record one number; what is not a number (an image, the name of a blob) is not a scalar."""
    if isinstance(value, str) or not hasattr(value, "__float__"):
        return
    try:
        value, axis = float(value), None if axis is None else int(axis)
    except (TypeError, ValueError, RuntimeError):  # a tensor of several elements, say
        return
    record(LoggedScalar(str(name), value, axis))
