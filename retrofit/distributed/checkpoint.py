"""Checkpoints that are written whole or not at all, carry no wrapper's prefix, and load at any world size."""

from __future__ import annotations

import os
import pickle
import shutil
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from .parallel import strip_wrapper_prefixes, unwrap_model
from .process_group import get_world_size, is_main_process
from .random_state import get_rng_state
from .reduce import gather_objects, raise_together


def save_checkpoint(
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None,
    epoch: int,
    path: str | os.PathLike[str],
    *,
    rng_state: Any = None,
    **extra: Any,
) -> None:
    """Write model, optimizer, epoch, every rank's random state and `extra` to `path`, whole or not at all.

    Collective: every rank. Rank 0 writes a temporary file beside `path` and renames it. An `extra` with a
    `state_dict()` (scheduler, scaler, EMA) is saved by it, anything else as it is (plain types and tensors, so that
    `weights_only=True` can read it). `rng_state` is this rank's, by default `get_rng_state()`.

    Raises OSError on every rank when rank 0 cannot write; the file that was at `path` is then unchanged.
    """
    rng_states = gather_objects(get_rng_state() if rng_state is None else rng_state)
    error: Exception | None = None
    if is_main_process():
        content = {
            "model": unwrap_model(model).state_dict(),
            "optimizer": None if optimizer is None else optimizer.state_dict(),
            "epoch": epoch,
            "world_size": get_world_size(),
            "rng_states": rng_states,
            **{name: _plain(value) for name, value in extra.items()},
        }
        try:
            write_atomically(content, Path(path))
        except Exception as failure:
            error = failure
    raise_together(error)


def load_checkpoint(
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None,
    path: str | os.PathLike[str],
    *,
    map_location: str | torch.device = "cpu",
    **stateful: Any,
) -> dict[str, Any]:
    """Put a checkpoint's state into `model`, `optimizer` and each of `stateful`, in place, and return the whole of it.

    Every rank that trains must call it (no collective inside). The model keeps its wrapper; a checkpoint with a
    wrapper's prefixes loads too. Raises FileNotFoundError; ValueError for a damaged file, one that `weights_only`
    refuses, or one of another model; nothing has been changed then.
    """
    content = read_checkpoint(path, map_location=map_location)
    restore_checkpoint(content, path, model, optimizer, **stateful)
    return content


def restore_checkpoint(
    content: Mapping[str, Any],
    path: str | os.PathLike[str],
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
    **stateful: Any,
) -> None:
    """Put a checkpoint's `content`, read from `path`, into model, optimizer and others: see `load_checkpoint`."""
    load_weights(model, content["model"], path)
    if optimizer is not None:
        if content.get("optimizer") is None:
            raise ValueError(f"checkpoint {path} holds no optimizer state; load it with optimizer=None")
        optimizer.load_state_dict(content["optimizer"])
    for name, target in stateful.items():
        if target is None:
            continue
        if content.get(name) is None:
            raise ValueError(f"checkpoint {path} holds no {name!r}; it was saved without one, switch it off here too")
        target.load_state_dict(content[name])


def load_weights(model: nn.Module, state_dict: Mapping[str, Any], path: str | os.PathLike[str]) -> None:
    """Load weights into the module behind `model`'s wrapper, all of them or none.

    Raises ValueError that names the file and the first differences.
    """
    module = unwrap_model(model)
    state, own = strip_wrapper_prefixes(state_dict), module.state_dict()
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
    module.load_state_dict(state)


def read_checkpoint(path: str | os.PathLike[str], *, map_location: str | torch.device = "cpu") -> dict[str, Any]:
    """Return a checkpoint's content. Raises FileNotFoundError, or ValueError for a damaged or refused file."""
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"no checkpoint at {path}; give a checkpoint file that exists")
    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                damaged = archive.testzip()  # checksums: torch itself loads flipped bits without a word
            if damaged is not None:
                raise ValueError(f"checkpoint {path} is damaged (bad checksum in {damaged}); use an older one")
        content = torch.load(path, map_location=map_location, weights_only=True)
    except pickle.UnpicklingError as error:
        raise ValueError(
            f"checkpoint {path} is not loaded: it holds more than weights and plain values, and unpickling that can "
            f"run code ({str(error).splitlines()[0]}); save state_dicts instead of whole objects"
        ) from error
    except (RuntimeError, EOFError, OSError, zipfile.BadZipFile) as error:
        raise ValueError(f"checkpoint {path} is damaged ({str(error).splitlines()[0]}); use an older one") from error
    if not isinstance(content, dict) or "model" not in content:
        raise ValueError(f"checkpoint {path} has no 'model' entry; it was not written by save_checkpoint")
    return content


def write_atomically(content: Any, path: Path) -> None:
    """Write `content` with torch.save to `path` through a temporary file and a rename, durable when it returns.

    Raises OSError that names the file, the free space and the remedy; the old file at `path` is then as it was.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(temporary, "wb") as file:
            torch.save(content, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except (OSError, RuntimeError) as error:  # torch wraps an OSError of the file in a RuntimeError
        temporary.unlink(missing_ok=True)
        raise OSError(
            f"could not write checkpoint {path}: {str(error).splitlines()[0]} ({_free_mib(path.parent)} MiB free); make "
            "room or choose another folder; the checkpoints already written are unchanged"
        ) from error


def copy_atomically(source: Path, target: Path) -> None:
    """Make `target` a second name of `source` (a copy where links are not possible), replacing it in one step."""
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    temporary.unlink(missing_ok=True)
    try:
        os.link(source, temporary)
    except OSError:
        shutil.copyfile(source, temporary)
    os.replace(temporary, target)


def _plain(value: Any) -> Any:
    return value.state_dict() if hasattr(value, "state_dict") else value


def _free_mib(folder: Path) -> int | str:
    try:
        return shutil.disk_usage(folder).free // 2**20
    except OSError:
        return "?"
