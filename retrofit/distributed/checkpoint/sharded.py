"""A checkpoint as a folder to which every rank writes its own part: nothing is gathered, and all disks' lanes are used.

The format is that of torch.distributed.checkpoint (DCP): `__<rank>_0.distcp` files and `.metadata`; next to them
`meta.pt` (torch.save) holds all but the weights, and the checksums. DCP's own `save` is not called, because
it runs collectives between its phases: here they all come first, in the main thread (`plan_sharded`), and the phases
that write files (`write_part`, `commit`) need none, so that a thread can run them (async_save.py). Rank 0 learns from a
small file of each rank that its part is complete, writes meta.pt last and renames the folder.

Requires a folder that all nodes share, and torch 2.6.
"""

from __future__ import annotations

import os
import pickle
import shutil
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.torch_version import TorchVersion

from ..collectives import broadcast_object, gather_objects, raise_together
from ..ddp.unwrap import unwrap_model
from ..process.process_group import get_rank, get_world_size, is_main_process
from .async_save import Abandoned, Save
from .atomic_file import WriteError, num_bytes, write_atomically, write_error
from .host_copy import copy_together
from .safe_pickle import load_plain
from .sharded_state import is_sharded_tensor, map_entries

META_NAME = "meta.pt"
METADATA_NAME = ".metadata"
WRITTEN_NAME = ".written_{rank}"  # what a rank wrote; gone when the checkpoint is complete
CHUNK = 2**24  # bytes, of a checksum


@dataclass
class Part:
    """What this rank writes, in host memory or, for a save that is waited for, where it was."""

    rank: int
    world_size: int
    plan: Any  # torch.distributed.checkpoint.SavePlan, of this rank
    tensors: dict[Any, torch.Tensor]  # by the plan's index
    metadata: Any = None  # of the whole checkpoint, on rank 0
    skeleton: Any = None  # the content without the tensors, on rank 0
    paths: dict[str, tuple[Any, ...]] = field(default_factory=dict)  # where in the skeleton a tensor belongs

    def resolve_data(self, item: Any) -> torch.Tensor:
        """Return what DCP's writer shall write for an item of the plan: it asks its planner, whose place this takes."""
        return self.tensors[item.index]


def require_dcp() -> None:
    """Raise RuntimeError where torch is too old for sharded checkpoints."""
    if TorchVersion(torch.__version__) < "2.6":
        raise RuntimeError(
            f"sharded checkpoints need torch 2.6 or newer (torch.distributed.checkpoint), this is {torch.__version__}; "
            "update torch, or use --ckpt full"
        )


def temporary_folder(path: Path) -> Path:
    """Return where the folder `path` is written before it is renamed, the same on every rank."""
    return path.with_name(f".{path.name}.tmp")


def former_folder(path: Path) -> Path:
    """Return what the checkpoint at `path` is called for the moment in which a newer one takes its place."""
    return path.with_name(f".{path.name}.former")


def plan_sharded(content: Mapping[str, Any], model: nn.Module, path: Path, *, copy: bool) -> Part:
    """Divide the tensors of a checkpoint's content among the ranks and return this rank's part.

    Shards are written by the ranks that have them, replicas (DDP) by one rank each, in equal shares; what may differ
    between ranks, such as BatchNorm's statistics, by rank 0. `copy`: the part is copied to the host, and the training
    may change the originals from then on. Collective: every rank. Raises OSError where a rank cannot write to the
    folder, RuntimeError before torch 2.6.
    """
    require_dcp()
    from torch.distributed.checkpoint import DefaultSavePlanner

    skeleton, tensors, paths = split_tensors(content, _is_stored(model))
    planner = DefaultSavePlanner()
    planner.set_up_planner(tensors, is_coordinator=is_main_process())
    plans = gather_objects(planner.create_local_plan())
    metadata = error = None
    if is_main_process():  # what it decides among equals is its own matter, so the others do not repeat it
        try:
            _remove(temporary_folder(path))
            temporary_folder(path).mkdir(parents=True)
            plans, metadata = planner.create_global_plan(plans)
            plans = _writer(temporary_folder(path)).prepare_global_plan(plans)
        except Exception as failure:
            error = write_error(path, failure) if isinstance(failure, OSError) else failure
    raise_together(error)
    plan = planner.finish_plan(broadcast_object(plans)[get_rank()])
    _require_folder(temporary_folder(path))
    staged: dict[Any, Any] = {item.index: planner.resolve_data(item) for item in plan.items}
    staged = {index: tensor.detach().to("cpu", copy=copy) for index, tensor in staged.items()}
    part = Part(get_rank(), get_world_size(), plan, staged)
    if copy:
        skeleton = copy_together(skeleton if is_main_process() else None)
    if is_main_process():
        part.metadata, part.skeleton, part.paths = metadata, skeleton, paths
    return part


def write_part(part: Part, path: Path) -> None:
    """Write this rank's files and say so in a last one; no communication. Raises OSError."""
    folder = temporary_folder(path)
    try:
        results = _writer(folder).write_data(part.plan, part).wait() if part.plan.items else []  # type: ignore[arg-type]
        names = sorted({result.storage_data.relative_path for result in results})
        files = {name: checksum(folder / name) for name in names}
        marker = folder / WRITTEN_NAME.format(rank=part.rank)
        unfinished = marker.with_name(f"{marker.name}.tmp")
        unfinished.write_bytes(pickle.dumps((results, files)))
        os.replace(unfinished, marker)
    except (OSError, RuntimeError) as error:  # torch wraps an OSError of the file in a RuntimeError
        raise write_error(path, error, num_bytes(part.tensors)) from error
    finally:
        part.tensors.clear()


def commit(part: Part, path: Path, save: Save) -> None:
    """Wait for the ranks' files, complete the folder and give it its name; rank 0 alone, no communication.

    Raises OSError and ValueError, and nothing is left then; Abandoned when another rank could not write.
    """
    folder = temporary_folder(path)
    try:
        results, files = [], {}
        for rank in range(part.world_size):
            marker = folder / WRITTEN_NAME.format(rank=rank)
            save.wait(lambda marker=marker: marker.name in os.listdir(folder))  # type: ignore[misc]
            of_rank, files_of_rank = load_plain(marker.read_bytes())
            results.append(of_rank)
            files.update(files_of_rank)
            marker.unlink()
        _writer(folder).finish(part.metadata, results)
        files[METADATA_NAME] = checksum(folder / METADATA_NAME)
        meta = {"content": part.skeleton, "tensors": part.paths, "files": files}
        write_atomically(meta, folder / META_NAME, checkpoint=path)
        replace_folder(folder, path)
    except Abandoned:
        raise  # others may still be writing
    except Exception as error:
        is_ours = isinstance(error, WriteError) or not isinstance(error, (OSError, RuntimeError))
        failure = error if is_ours else write_error(path, error)
        discard(part, path)
        if failure is error:
            raise
        raise failure from error


def discard(part: Part, path: Path) -> None:
    """Remove, on rank 0, what was written of a checkpoint that a rank could not complete."""
    if part.rank == 0:
        shutil.rmtree(temporary_folder(path), ignore_errors=True)


def replace_folder(folder: Path, path: Path) -> None:
    """Rename `folder` to `path`. A folder cannot take another's place in one step: a former one steps aside first."""
    former = former_folder(path)
    if path.exists() or path.is_symlink():
        _remove(former)
        os.replace(path, former)
    os.replace(folder, path)
    _remove(former)


def remove_folder(path: Path) -> None:
    """Remove a checkpoint's folder; from the first moment on it is none any more."""
    doomed = temporary_folder(path)
    _remove(doomed)
    os.replace(path, doomed)
    _remove(doomed)


def split_tensors(
    content: Mapping[str, Any], is_stored: Callable[[tuple[Any, ...], torch.Tensor], bool]
) -> tuple[Any, dict[str, torch.Tensor], dict[str, tuple[Any, ...]]]:
    """Return `content` with None for every stored tensor, those tensors by name, and where they were by name."""
    tensors: dict[str, torch.Tensor] = {}
    paths: dict[str, tuple[Any, ...]] = {}

    def walk(value: Any, path: tuple[Any, ...]) -> Any:
        if isinstance(value, torch.Tensor) and is_stored(path, value):
            name = ".".join(map(str, path))
            tensors[name], paths[name] = value.detach(), path
            return None
        return map_entries(value, path, walk)

    return walk(content, ()), tensors, paths


def checksum(path: Path) -> tuple[int, int]:
    """Return a file's size in bytes and its CRC-32."""
    size = crc = 0
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            size, crc = size + len(chunk), zlib.crc32(chunk, crc)
    return size, crc


def _is_stored(model: nn.Module) -> Callable[[tuple[Any, ...], torch.Tensor], bool]:
    """Return which tensors are divided among the ranks: shards, and those that are the same on every rank."""
    has_replicas = get_world_size() == 1 or isinstance(model, DistributedDataParallel)
    names = {name for name, _ in unwrap_model(model).named_parameters(remove_duplicate=False)}

    def is_stored(path: tuple[Any, ...], tensor: torch.Tensor) -> bool:
        is_replica = path[-1] in names or (path[0] == "optimizer" and tensor.dim() > 0)
        return is_sharded_tensor(tensor) or (has_replicas and is_replica)

    return is_stored


def _require_folder(folder: Path) -> None:
    """See that every rank has the folder that rank 0 has made. Collective: every rank."""
    error = None
    if not folder.is_dir():
        error = OSError(
            f"rank {get_rank()} does not see the folder {folder} that rank 0 has made; a sharded checkpoint needs a "
            "disk that all nodes share: choose a folder there, or use --ckpt full"
        )
    raise_together(error)


def _writer(folder: Path) -> Any:
    from torch.distributed.checkpoint import FileSystemWriter

    class Writer(FileSystemWriter):
        def storage_meta(self) -> None:
            """Nothing: it would be the temporary folder's name."""

    return Writer(folder)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
