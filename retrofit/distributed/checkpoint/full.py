"""Checkpoints that are written whole or not at all, carry no wrapper's prefix, and load at any world size."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ..collectives import gather_objects
from ..data.random_state import get_rng_state
from ..ddp.unwrap import strip_wrapper_prefixes
from ..process.options import get_option
from ..process.process_group import get_world_size, is_main_process
from ..strategies.zero import loadable, own_state, refuse_sharded, state_for_file
from .async_save import Save, finish_saves, start_save
from .atomic_file import first_line, refused_class, write_atomically
from .host_copy import copy_together
from .rendezvous_check import require_every_rank
from .sharded import META_NAME, commit, discard, former_folder, plan_sharded, write_part
from .sharded_state import gather_state, map_entries, shard_model_state, shard_optimizer_state
from .stored_tensors import find_damage, is_sharded_checkpoint, read_stored, stored_content

MARKED_AS_FOLDER = 0x10  # among the external attributes of an entry of a zip archive


def save_checkpoint(
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None,
    epoch: int,
    path: str | os.PathLike[str],
    *,
    rng_state: Any = None,
    sharded: bool | None = None,
    asynchronous: bool | None = None,
    then: Callable[[], None] | None = None,
    **extra: Any,
) -> None:
    """Write model, optimizer, epoch, every rank's random state and `extra` to `path`, whole or not at all.

    Collective: every rank, whatever the strategy. A full checkpoint is one file, which rank 0 writes: what is sharded
    is brought together for it. A `sharded` one (by default that of `--ckpt`) is a folder of that name, to which every
    rank writes its own part, on a disk that all nodes share. Either loads under every strategy, at any number of
    ranks. `path` is what it was until the new one is complete; then rank 0 calls `then`.

    `asynchronous` (by default `--async_save`): return as soon as the state has been copied to host memory, and write in
    the background; the next save and `finish_saves` wait for it and raise its errors.

    An `extra` with a `state_dict()` (scheduler, scaler, EMA) is saved by it, anything else as it is (plain types and
    tensors, so that `weights_only=True` can read it). `rng_state` is this rank's, by default `get_rng_state()`.

    Raises on every rank when a rank cannot write (OSError there) or when the content could not be loaded again
    (ValueError there), RuntimeError on the others; what was at `path` is then unchanged. ValueError for a sharded one
    under DeepSpeed, RuntimeError for one before torch 2.6.
    """
    sharded = get_option("ckpt") == "sharded" if sharded is None else sharded
    asynchronous = get_option("async_save") if asynchronous is None else asynchronous
    if sharded:
        refuse_sharded(model)
    require_every_rank("save_checkpoint")
    finish_saves()
    content = {
        "model": state_for_file(model),
        "optimizer": None if optimizer is None else state_for_file(optimizer),
        "epoch": epoch,
        "world_size": get_world_size(),
        "rng_states": gather_objects(get_rng_state() if rng_state is None else rng_state),
        **{name: _plain(value) for name, value in extra.items()},
    }
    save = _save_sharded if sharded else _save_full
    save(content, model, Path(path), asynchronous, then if is_main_process() else None)


def _save_full(
    content: dict[str, Any], model: nn.Module, path: Path, asynchronous: bool, then: Callable[[], None] | None
) -> None:
    content = gather_state(content)
    if asynchronous:
        content = copy_together(content if is_main_process() else None)
    write = partial(write_atomically, content, path) if is_main_process() else _nothing

    def finish(save: Save) -> None:
        if then is not None:
            then()

    start_save(Save(write, finish), in_thread=False, asynchronous=asynchronous)


def _save_sharded(
    content: dict[str, Any], model: nn.Module, path: Path, asynchronous: bool, then: Callable[[], None] | None
) -> None:
    part = plan_sharded(content, model, path, copy=asynchronous)

    def finish(save: Save) -> None:
        if part.rank == 0:
            commit(part, path, save)
        if then is not None:
            then()

    # In a thread in any case: rank 0 waits there for the other ranks' files, and here for news that one has failed.
    save = Save(partial(write_part, part, path), finish, partial(discard, part, path))
    start_save(save, in_thread=True, asynchronous=asynchronous)


def _nothing() -> None:
    return


def load_checkpoint(
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None,
    path: str | os.PathLike[str],
    *,
    map_location: str | torch.device = "cpu",
    **stateful: Any,
) -> dict[str, Any]:
    """Put a checkpoint's state into `model`, `optimizer` and each of `stateful`, in place, and return the whole of it.

    Of a sharded checkpoint a rank reads its own part alone; what is returned has a `StoredTensor` for each tensor then.
    Every rank that trains must call it (a collective under strategy deepspeed). The model keeps its wrapper; a
    checkpoint with a wrapper's prefixes loads too. Raises FileNotFoundError; ValueError for a damaged file, one that
    `weights_only` refuses, or one of another model; nothing has been changed then.
    """
    content = read_checkpoint(path, map_location=map_location, whole=False)
    restore_checkpoint(content, path, model, optimizer, **stateful)
    return content


def restore_checkpoint(
    content: Mapping[str, Any],
    path: str | os.PathLike[str],
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
    *,
    warm_up: Callable[[], Any] | None = None,
    **stateful: Any,
) -> None:
    """Put a checkpoint's `content`, read from `path`, into model, optimizer and others: see `load_checkpoint`.

    `warm_up` runs one forward and backward pass of a training step first, for a continuation that is bit-identical: DDP
    lays its gradient buckets out again after the first step, and with three or more ranks the layout decides in which
    order a sum is rounded. Its gradients are dropped, and what else it changes (BatchNorm statistics) is overwritten.
    """
    targets = {name: target for name, target in {"optimizer": optimizer, **stateful}.items() if target is not None}
    for name in targets:
        if content.get(name) is None:
            raise ValueError(f"checkpoint {path} holds no {name!r}; it was saved without one, switch it off here too")
    weights = _weights_for(model, content["model"], path)
    if warm_up is not None and isinstance(model, DistributedDataParallel):
        warm_up()
        model.zero_grad()
    for name, target in targets.items():  # the optimizer first: it refuses another one's state before it changes
        try:
            target.load_state_dict(_state_for(target, content[name]))
        except ValueError as error:
            raise ValueError(f"checkpoint {path} does not fit, {name}: {error}; build it as it was saved") from error
    loadable(model).load_state_dict(weights)


def load_weights(model: nn.Module, state_dict: Mapping[str, Any], path: str | os.PathLike[str]) -> None:
    """Load weights into `model`, or into the module that it wraps: all of them or none.

    Raises ValueError that names the file and the first differences.
    """
    loadable(model).load_state_dict(_weights_for(model, state_dict, path))


def _weights_for(model: nn.Module, state_dict: Mapping[str, Any], path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return `state_dict` with the names that `model` has without its wrapper. Raises as `load_weights`."""
    state, own = strip_wrapper_prefixes(state_dict), own_state(model)
    differences = [f"missing {key}" for key in own if key not in state]
    differences += [f"unexpected {key}" for key in state if key not in own]
    differences += [
        f"{key} is {tuple(state[key].shape)} there, {tuple(own[key].shape)} here"
        for key in own
        if key in state and getattr(state[key], "shape", None) != getattr(own[key], "shape", None)
    ]
    if differences:
        shown = "; ".join(differences[:3])
        raise ValueError(
            f"checkpoint {path} is of another model, {len(differences)} difference(s): {shown}; build the model "
            "with the options it was trained with"
        )
    return shard_model_state(read_stored(state, lambda place: own.get(place[0])), own)


def _state_for(target: Any, state: Any) -> Any:
    """Return a state as `target` holds it: sharded, where its tensors are."""
    if isinstance(target, torch.optim.Optimizer):
        own = dict(enumerate(parameter for group in target.param_groups for parameter in group["params"]))
        state = read_stored(state, lambda place: own.get(place[1]) if place[0] == "state" else None)
        return shard_optimizer_state(state, target)
    if isinstance(target, nn.Module):
        entries = target.state_dict()
        return shard_model_state(read_stored(state, lambda place: entries.get(place[0])), entries)
    return read_stored(state)


def read_checkpoint(
    path: str | os.PathLike[str], *, map_location: str | torch.device = "cpu", whole: bool = True
) -> dict[str, Any]:
    """Return a checkpoint's content, the whole of it, whether it is a file or a sharded checkpoint's folder.

    Without `whole` a sharded checkpoint's tensors are not read yet: its content has a `StoredTensor` for each, of which
    `restore_checkpoint` and `load_weights` read what this rank needs, and each rank checks a part of the files.
    Raises FileNotFoundError, or ValueError for a damaged or refused checkpoint.
    """
    path = Path(path)
    if not path.exists() and is_sharded_checkpoint(former_folder(path)):
        path = former_folder(path)  # the process ended in the moment in which a new one took its place
    if not is_sharded_checkpoint(path):
        if not path.is_file():
            raise FileNotFoundError(f"no checkpoint at {path}; give a checkpoint file that exists")
        return _read_file(path, path, map_location, "model")
    meta = _read_file(path / META_NAME, path, map_location, "content")
    try:
        damage = find_damage(path, meta["files"], split_by_rank=not whole)
        if damage:
            raise zipfile.BadZipFile(damage)
        content = stored_content(path, meta)
        return _moved(read_stored(content), map_location) if whole else content
    except RuntimeError:
        raise
    except Exception as error:
        raise ValueError(_damaged(path, error)) from error


def _read_file(file: Path, path: Path, map_location: str | torch.device, entry: str) -> dict[str, Any]:
    """Return what is in a file of the checkpoint `path`, a dict with `entry`. Raises ValueError."""
    try:
        if zipfile.is_zipfile(file):
            with zipfile.ZipFile(file) as archive:
                damaged = archive.testzip()  # checksums: torch itself loads flipped bits without a word
                files = [entry for entry in archive.infolist() if not entry.is_dir()]
                folders = [entry.filename for entry in files if entry.external_attr & MARKED_AS_FOLDER]
            if damaged is not None:
                raise zipfile.BadZipFile(f"bad checksum in {damaged}")
            if folders:  # torch loads whatever is in memory in the place of such an entry
                raise zipfile.BadZipFile(f"{folders[0]} is marked as a folder")
        content = torch.load(file, map_location=map_location, weights_only=True)
    except Exception as error:  # what a damaged pickle raises is anybody's guess
        refused = refused_class(error)
        if refused is None:
            raise ValueError(_damaged(path, error)) from error
        raise ValueError(
            f"checkpoint {path} is not loaded: it holds a {refused}, and unpickling more than weights and plain values "
            "can run code; save state_dicts instead of whole objects"
        ) from error
    if not isinstance(content, dict) or entry not in content:
        raise ValueError(f"checkpoint {path} has no {entry!r} entry; it was not written by save_checkpoint")
    return content


def _damaged(path: Path, error: BaseException) -> str:
    return f"checkpoint {path} is damaged, or no checkpoint ({first_line(error)}); use an older one"


def _moved(content: Any, map_location: str | torch.device) -> Any:
    """Return `content` with its tensors where `map_location` says; random states belong to the CPU and are not used."""
    if str(map_location) == "cpu":
        return content

    def move(value: Any, path: tuple[Any, ...]) -> Any:
        return value.to(map_location) if isinstance(value, torch.Tensor) else map_entries(value, path, move)

    return move(content, ())


def _plain(value: Any) -> Any:
    return value.state_dict() if hasattr(value, "state_dict") else value
