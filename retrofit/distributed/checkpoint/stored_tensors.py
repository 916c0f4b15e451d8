"""Read a sharded checkpoint: each rank the parts of the tensors that it needs, at any number of ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..process.process_group import get_rank, get_world_size
from .safe_pickle import load_plain
from .sharded import META_NAME, METADATA_NAME, checksum, require_dcp
from .sharded_state import is_sharded_tensor, map_entries


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in a sharded checkpoint that has not been read yet."""

    folder: Path
    name: str
    shape: torch.Size
    dtype: torch.dtype


def is_sharded_checkpoint(path: Path) -> bool:
    """Return whether `path` is the complete folder of a sharded checkpoint."""
    return (path / META_NAME).is_file()


def stored_content(path: Path, meta: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of a sharded checkpoint, whose meta.pt holds `meta`, with a `StoredTensor` for each tensor.

    Raises OSError, pickle.UnpicklingError and others when `.metadata` is damaged, RuntimeError before torch 2.6.
    """
    require_dcp()
    stored = load_plain((path / METADATA_NAME).read_bytes()).state_dict_metadata
    names = {tuple(place): name for name, place in meta["tensors"].items()}

    def fill(value: Any, place: tuple[Any, ...]) -> Any:
        if place in names:
            described = stored[names[place]]
            return StoredTensor(path, names[place], torch.Size(described.size), described.properties.dtype)
        return map_entries(value, place, fill)

    return fill(meta["content"], ())


def find_damage(path: Path, files: Mapping[str, tuple[int, int]], *, split_by_rank: bool) -> str:
    """Return what is wrong with the files of a sharded checkpoint, "" if nothing is.

    `split_by_rank`: each rank reads every world-size-th file through, and looks at the sizes of the others.
    """
    for number, (name, (size, crc)) in enumerate(sorted(files.items())):
        file = path / name
        if not file.is_file():
            return f"{name} is missing"
        if file.stat().st_size != size:
            return f"{name} has {file.stat().st_size} bytes, not {size}"
        if (not split_by_rank or number % get_world_size() == get_rank()) and checksum(file) != (size, crc):
            return f"bad checksum in {name}"
    return ""


def read_stored(value: Any, like: Callable[[tuple[Any, ...]], Any] = lambda path: None) -> Any:
    """Return `value` with every StoredTensor in it read.

    `like` gives a tensor's counterpart by its path of keys, if it has one: where that is a shard, this rank's shard of
    the same kind is read and no more; else the whole tensor, into host memory. No communication.
    """
    targets: dict[Path, dict[str, torch.Tensor]] = {}

    def place(value: Any, path: tuple[Any, ...]) -> Any:
        if isinstance(value, StoredTensor):
            own = like(path)
            fits = is_sharded_tensor(own) and own.shape == value.shape
            with torch.no_grad():
                target = (
                    torch.empty_like(own, dtype=value.dtype) if fits else torch.empty(value.shape, dtype=value.dtype)
                )
            return targets.setdefault(value.folder, {}).setdefault(value.name, target)
        return map_entries(value, path, place)

    read = place(value, ())
    for folder, tensors in targets.items():
        _read_into(folder, tensors)
    return read


def _read_into(folder: Path, tensors: dict[str, torch.Tensor]) -> None:
    """Run the phases of DCP's load for this rank alone: its `load` would run collectives, and unpickle anything."""
    from torch.distributed.checkpoint import DefaultLoadPlanner, FileSystemReader

    metadata = load_plain((folder / METADATA_NAME).read_bytes())
    planner, reader = DefaultLoadPlanner(), FileSystemReader(folder)
    planner.set_up_planner(tensors, metadata, is_coordinator=True)
    reader.set_up_storage_reader(metadata, is_coordinator=True)
    plan = reader.prepare_local_plan(planner.create_local_plan())
    plans = reader.prepare_global_plan(planner.create_global_plan([plan]))
    reader.read_data(planner.finish_plan(plans[0]), planner).wait()
