"""The process group that the script joins, and its collective operators: elements, type and reduction."""

from __future__ import annotations

import functools
import os
import re
import sys
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import Join

from retrofit.verify.trace.after_import import after_import
from retrofit.verify.trace.events import CollectiveCall, GroupJoin, Record, UnevenInputs

# Of these the first argument is what a rank receives; how much it gives is the same on every rank.
_GIVES_SECOND = ("gather", "reduce_scatter")


def install_groups(record: Record) -> None:
    """Record the first `init_process_group` of the process, with the port it meets at and the launcher's port."""
    launcher_port = os.environ.get("MASTER_PORT")
    join = dist.init_process_group

    @functools.wraps(join)
    def traced(*args: Any, **kwargs: Any) -> None:
        method = kwargs.get("init_method") or (args[1] if len(args) > 1 else None) or "env://"
        port = re.search(r"tcp://[^/]*:(\d+)", str(method))
        master_port = port.group(1) if port else os.environ.get("MASTER_PORT")
        try:
            join(*args, **kwargs)
        finally:
            is_joined = dist.is_initialized()
            record(
                GroupJoin(
                    backend=dist.get_backend() if is_joined else None,
                    world_size=dist.get_world_size() if is_joined else None,
                    rank=dist.get_rank() if is_joined else None,
                    master_port=master_port,
                    launcher_port=launcher_port,
                )
            )

    for name, module in list(sys.modules.items()):  # others of torch have it by name, such as that of device meshes
        if name.startswith("torch.") and vars(module).get("init_process_group") is join:
            module.init_process_group = traced  # type: ignore[attr-defined]


def install_new_groups(record: Record) -> None:
    """Record each `dist.new_group`: every rank has to call it, those that are not in the new group, too."""
    build = dist.new_group

    @functools.wraps(build)
    def traced(*args: Any, **kwargs: Any) -> Any:
        if not kwargs.get("use_local_synchronization"):  # with it, the members alone meet
            record(CollectiveCall(-1, "new_group", 0, None, None, in_backward=False))
        return build(*args, **kwargs)

    for name, module in list(sys.modules.items()):
        if name.startswith("torch.") and vars(module).get("new_group") is build:
            module.new_group = traced  # type: ignore[attr-defined]


def install_join(record: Record) -> None:
    """Record each entry of torch's Join context, and of Accelerate's, which is torch's on several GPUs only."""
    enter = Join.__enter__

    @functools.wraps(enter)
    def traced(context: Join) -> Any:
        record(UnevenInputs())
        return enter(context)

    def watch(module: ModuleType) -> None:
        owner = module.Accelerator
        join = owner.join_uneven_inputs

        @functools.wraps(join)
        def traced_join(*args: Any, **kwargs: Any) -> Any:
            record(UnevenInputs())
            return join(*args, **kwargs)

        owner.join_uneven_inputs = traced_join

    Join.__enter__ = traced  # type: ignore[method-assign]
    after_import("accelerate.accelerator", watch)


def is_collective(func: Any) -> bool:
    """Return whether this operator talks to other ranks (waiting for an earlier one to finish does not)."""
    schema = getattr(func, "_schema", None)
    if schema is None or func.namespace not in ("c10d", "_c10d_functional", "c10d_functional"):
        return False
    return any(argument.name in ("process_group", "group_name", "tag") for argument in schema.arguments)


def describe_collective(func: Any, args: tuple[Any, ...], number: int, in_backward: bool) -> CollectiveCall:
    """Return the event of a call of the operator `func`: its elements, their type, and how it combines them."""
    name = func._schema.name.split("::")[1]
    second = func.namespace == "c10d" and any(word in name for word in _GIVES_SECOND)
    tensors = _tensors_in(args[1] if second else args[0])
    return CollectiveCall(
        number=number,
        op=name,
        numel=sum(tensor.numel() for tensor in tensors),
        dtype=str(tensors[0].dtype).split(".")[1] if tensors else None,
        reduce=_reduction(func, args),
        in_backward=in_backward,
    )


def _tensors_in(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    return [tensor for item in value for tensor in _tensors_in(item)] if isinstance(value, (list, tuple)) else []


def _reduction(func: Any, args: tuple[Any, ...]) -> str | None:
    for argument, value in zip(func._schema.arguments, args):
        if argument.name != "reduce_op":
            continue
        if isinstance(value, str):
            return value
        try:
            return str(dist.ReduceOp.unbox(value).op).split(".")[-1].lower()  # type: ignore[attr-defined]
        except (AttributeError, RuntimeError):
            return None  # a torch that cannot look inside it
    return None
