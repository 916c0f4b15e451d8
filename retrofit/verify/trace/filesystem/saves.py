"""Files that the script saves and loads with torch, and their content."""

from __future__ import annotations

import functools
import os
import sys
import zlib
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from retrofit.verify.trace.events import FileLoad, FileSave, Keys, Record, Values

from .contents import describe, values_of

if TYPE_CHECKING:
    from .files import FileTrace

MOST_REMEMBERED = 1000  # files that were saved and may yet be renamed
MOST_BUFFERS = 8  # in memory, whose bytes may yet be written to a file


def install_private_saves(files: FileTrace) -> None:
    """Tell `files` what torch.save is about to write: it opens a file in compiled code, which raises no event."""
    save = torch.save

    @functools.wraps(save)
    def private_save(obj: Any, f: Any, *args: Any, **kwargs: Any) -> Any:
        path = _path(f)
        if path is f:
            files.writes(path, keep=False)
        return save(obj, f, *args, **kwargs)

    torch.save = private_save


def install_saves(record: Record, files: FileTrace) -> None:
    """Record a FileSave for a file by torch.save, again when it is renamed, and a FileLoad for one by torch.load.

    A file that a library fills with what torch.save has written to memory is one when it is renamed.
    """
    saved: dict[str, tuple[Keys, Values]] = {}  # by place
    in_memory: dict[tuple[int, int], tuple[Keys, Values]] = {}  # by size and checksum
    install_private_saves(files)
    save, load = torch.save, torch.load

    @functools.wraps(save)
    def traced_save(obj: Any, f: Any, *args: Any, **kwargs: Any) -> Any:
        path = _path(f)
        result = save(obj, f, *args, **kwargs)
        if files.active and path is not None:
            with suppress(Exception):
                content = describe(obj), values_of(obj)
                if len(saved) >= MOST_REMEMBERED:
                    del saved[next(iter(saved))]
                saved[files.place(path)] = content
                _record_save(files.name(path), *content)
        elif files.active and hasattr(f, "getbuffer"):
            with suppress(Exception):
                if len(in_memory) >= MOST_BUFFERS:
                    del in_memory[next(iter(in_memory))]
                in_memory[_sum_of(f.getbuffer())] = describe(obj), values_of(obj)
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
        if source not in saved and os.path.isfile(source):
            sizes = {size for size, _ in in_memory}
            is_known = os.path.getsize(source) in sizes
            content = in_memory.get(_sum_of(Path(source).read_bytes())) if is_known else None
            saved.update({source: content} if content is not None else {})
        for place in [place for place in saved if place == source or place.startswith(f"{source}/")]:
            content = saved.pop(place)
            saved[target + place[len(source) :]] = content
            _record_save(files.name(target + place[len(source) :]), *content)

    def _record_save(name: str | None, keys: Keys, values: Values) -> None:
        if name is not None:
            record(FileSave(name, keys, values))

    files.on_rename = on_rename
    torch.save = torch.serialization.save = traced_save
    torch.load = torch.serialization.load = traced_load


def _sum_of(content: Any) -> tuple[int, int]:
    return len(content), zlib.crc32(content)


def _path(file: Any) -> Any:
    """Return the path of a file that is given by its path or open, None for one without a name."""
    if isinstance(file, str) or hasattr(file, "__fspath__"):
        return file
    name = getattr(file, "name", None)
    return name if isinstance(name, (str, bytes)) or hasattr(name, "__fspath__") else None
