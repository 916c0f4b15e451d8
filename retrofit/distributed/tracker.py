"""One run of an experiment tracker for all ranks: rank 0 has it, the others have the tool's own disabled one."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from .output import SilentObject
from .process_group import is_distributed, is_main_process
from .reduce import broadcast_object, raise_together

# What a script reads from a run to name files and folders, and cannot be told when the run is started.
FACTS = ("name", "id", "dir", "path", "project", "entity", "group", "url", "sweep_id")


def start_tracker(start: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Return `start(*args, **kwargs)` on rank 0 and a run that records nothing on the others.

    `run = start_tracker(wandb.init, project="a")`. The others have `mode="disabled"` of wandb and swanlab, `"debug"` of
    neptune, `disabled=True` of comet_ml, offline mode of clearml, and a `SilentObject` of every other tool. A disabled
    run of wandb has the configuration of rank 0's, which a sweep may have decided about, its name, its id and its
    folder. Collective: every rank. Raises what `start` raises on rank 0, on the others a RuntimeError that says so.
    """
    if not is_distributed():
        if os.environ.get("WORLD_SIZE", "1") != "1":
            raise RuntimeError(
                f"start_tracker was called before the process group exists, in one of {os.environ['WORLD_SIZE']} "
                "processes, which would each start a run; call setup_distributed() before it"
            )
        return start(*args, **kwargs)
    run = error = None
    if is_main_process():
        try:
            run = start(*args, **kwargs)
        except Exception as raised:
            error = raised
    raise_together(error)
    told = broadcast_object(_told(run) if is_main_process() else None)
    return run if is_main_process() else _disabled(start, args, kwargs, told)


def _told(run: Any) -> dict[str, Any]:
    """Return what the other ranks are to know about a run: the texts and numbers among FACTS, and the configuration."""
    facts: dict[str, Any] = {}
    for name in FACTS:
        try:
            value = getattr(run, name, SilentObject)
        except Exception:  # some can only be read from a run that is online
            continue
        if value is None or isinstance(value, (str, int)):
            facts[name] = value
    try:
        config = dict(run.config)
    except Exception:
        config = None
    return {"facts": facts, "config": config}


def _disabled(start: Callable[..., Any], args: Any, kwargs: dict[str, Any], told: Any) -> Any:
    tool = str(getattr(start, "__module__", "")).partition(".")[0]
    if tool in ("wandb", "swanlab"):
        left_out = ("resume", "config_include_keys", "config_exclude_keys")
        given = {name: value for name, value in kwargs.items() if name not in left_out}
        if told["config"] is not None:
            given["config"] = told["config"]
        given.update({name: told["facts"][name] for name in ("name", "id") if told["facts"].get(name)})
        return _with_facts(start(*args, **{**given, "mode": "disabled"}), told["facts"])
    if tool == "neptune":
        return start(*args, **{**kwargs, "mode": "debug"})
    if tool == "comet_ml" and isinstance(start, type):
        return start(*args, **{**kwargs, "disabled": True})
    owner: Any = getattr(start, "__self__", None)
    if tool in ("clearml", "trains") and hasattr(owner, "set_offline"):
        owner.set_offline(True)
        return start(*args, **kwargs)
    return SilentObject()


def _with_facts(run: Any, facts: dict[str, Any]) -> Any:
    """Return a disabled run that says of itself what rank 0's says: its class makes up a name and a folder."""
    different = {name: value for name, value in facts.items() if getattr(run, name, None) != value}
    if different:
        known = dict(different)
        members = {name: property(_reading(known, name), _writing(known, name)) for name in different}
        run.__class__ = type(type(run).__name__, (type(run),), members)
    return run


def _reading(known: dict[str, Any], name: str) -> Callable[[Any], Any]:
    return lambda run: known[name]


def _writing(known: dict[str, Any], name: str) -> Callable[[Any, Any], None]:
    return lambda run, value: known.__setitem__(name, value)
