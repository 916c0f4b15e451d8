"""Files that the script saves and loads with torch, and their content."""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from retrofit.verify.trace.events import FileLoad, FileSave, Keys, Record

if TYPE_CHECKING:
    from .files import FileTrace

MOST_LEAVES = 2000
MOST_PLAIN_ITEMS = 100  # longer lists without tensors or containers are described as one leaf
MOST_REMEMBERED = 1000  # files that were saved and may yet be renamed
MOST_LEVELS = 50


def install_saves(record: Record, files: FileTrace) -> None:
    """Record a FileSave for a file by torch.save, again when it is renamed, and a FileLoad for one by torch.load."""
    saved: dict[str, Keys] = {}  # by place
    save, load = torch.save, torch.load

    @functools.wraps(save)
    def traced_save(obj: Any, f: Any, *args: Any, **kwargs: Any) -> Any:
        path = _path(f)
        if path is f:
            files.writes(path, keep=False)  # torch opens it in compiled code, which raises no event
        result = save(obj, f, *args, **kwargs)
        if files.active and path is not None:
            with suppress(Exception):
                keys = describe(obj)
                if len(saved) >= MOST_REMEMBERED:
                    del saved[next(iter(saved))]
                saved[files.place(path)] = keys
                _record_save(files.name(path), keys)
        return result

    @functools.wraps(load)
    def traced_load(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        path = _path(f)
        if files.active and path is not None:
            with suppress(Exception):
                own, caller = files.is_in_project(path), sys._getframe(1).f_code.co_filename
                record(FileLoad(files.name(path), map_location is not None, own, files.holds(caller)))
        return load(f, map_location, *args, **kwargs)

    def on_rename(source: str, target: str) -> None:
        for place in [place for place in saved if place == source or place.startswith(f"{source}/")]:
            keys = saved.pop(place)
            saved[target + place[len(source) :]] = keys
            _record_save(files.name(target + place[len(source) :]), keys)

    def _record_save(name: str | None, keys: Keys) -> None:
        if name is not None:
            record(FileSave(name, keys))

    files.on_rename = on_rename
    torch.save = torch.serialization.save = traced_save
    torch.load = torch.serialization.load = traced_load


def describe(obj: Any) -> Keys:
    """Return what is in `obj`: a flat name like "model/fc.weight" and "float32[10, 3]" or a type name of each leaf.

    Names of dict entries and numbers of list items are joined with "/". A module is a leaf "module:Net", followed by
    its parameters and buffers as if it were a dict. At most MOST_LEAVES leaves, and one "..." if there are more.
    """
    keys: Keys = {}
    _add(keys, "", obj, 0)
    return keys


def _add(keys: Keys, name: str, obj: Any, level: int) -> None:
    if len(keys) >= MOST_LEAVES:
        keys["..."] = "more"
        return
    if level < MOST_LEVELS and isinstance(obj, nn.Module):
        keys[name] = f"module:{type(obj).__name__}"
        # Not its state_dict, which wrappers of several ranks can only make together.
        children: list[tuple[Any, Any]] = [*obj.named_parameters(), *obj.named_buffers()]
    elif level < MOST_LEVELS and isinstance(obj, Mapping) and obj:
        children = list(obj.items())
    elif level < MOST_LEVELS and isinstance(obj, (list, tuple)) and obj and not _is_long_and_plain(obj):
        children = list(enumerate(obj))
    else:
        keys[name] = _leaf(obj)
        return
    for key, child in children:
        _add(keys, f"{name}/{key}" if name else str(key), child, level + 1)


def _is_long_and_plain(items: Any) -> bool:
    containers = (torch.Tensor, nn.Module, Mapping, list, tuple)
    return len(items) > MOST_PLAIN_ITEMS and not any(isinstance(item, containers) for item in items)


def _leaf(obj: Any) -> str:
    if isinstance(obj, torch.Tensor):
        return f"{str(obj.dtype)[len('torch.') :]}{list(obj.shape)}"
    return f"{type(obj).__name__}[{len(obj)}]" if isinstance(obj, (list, tuple)) and obj else type(obj).__name__


def _path(file: Any) -> Any:
    """Return the path of a file that is given by its path or open, None for one without a name."""
    if isinstance(file, str) or hasattr(file, "__fspath__"):
        return file
    name = getattr(file, "name", None)
    return name if isinstance(name, (str, bytes)) or hasattr(name, "__fspath__") else None
