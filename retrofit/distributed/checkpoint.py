"""Checkpoints that are written whole or not at all, carry no wrapper's prefix, and load at any world size."""

from __future__ import annotations

import contextlib
import os
import pickle
import re
import shutil
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from .meeting import require_every_rank
from .process_group import get_world_size, is_main_process
from .random_state import get_rng_state
from .reduce import gather_objects, raise_together
from .sharded_state import gather_state, shard_model_state, shard_optimizer_state
from .unwrap import strip_wrapper_prefixes
from .zero import loadable, own_state, state_for_file


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

    Collective: every rank, whatever the strategy: what is sharded is brought together for the file, which is the same
    under every strategy. Rank 0 writes a temporary file beside `path` and renames it. An `extra` with a
    `state_dict()` (scheduler, scaler, EMA) is saved by it, anything else as it is (plain types and tensors, so that
    `weights_only=True` can read it). `rng_state` is this rank's, by default `get_rng_state()`.

    Raises on every rank when rank 0 cannot write (OSError there) or when the content could not be loaded again
    (ValueError there), RuntimeError on the others; the file that was at `path` is then unchanged.
    """
    require_every_rank("save_checkpoint")
    rng_states = gather_objects(get_rng_state() if rng_state is None else rng_state)
    content = {
        "model": state_for_file(model),
        "optimizer": None if optimizer is None else state_for_file(optimizer),
        "epoch": epoch,
        "world_size": get_world_size(),
        "rng_states": rng_states,
        **{name: _plain(value) for name, value in extra.items()},
    }
    content = gather_state(content)
    error: Exception | None = None
    if is_main_process():
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

    Every rank that trains must call it (a collective under strategy deepspeed). The model keeps its wrapper; a
    checkpoint with a wrapper's prefixes loads too. Raises FileNotFoundError; ValueError for a damaged file, one that
    `weights_only` refuses, or one of another model; nothing has been changed then.
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
    targets = {name: target for name, target in {"optimizer": optimizer, **stateful}.items() if target is not None}
    for name in targets:
        if content.get(name) is None:
            raise ValueError(f"checkpoint {path} holds no {name!r}; it was saved without one, switch it off here too")
    weights = _weights_for(model, content["model"], path)
    for name, target in targets.items():  # the optimizer first: it refuses another one's state before it changes
        try:
            target.load_state_dict(_state_for(target, content[name]))
        except ValueError as error:
            raise ValueError(f"checkpoint {path} does not fit, {name}: {error}; build it as it was saved") from error
    loadable(model).load_state_dict(weights)


def load_weights(model: nn.Module, state_dict: Mapping[str, Any], path: str | os.PathLike[str]) -> None:
    """Load weights into the module behind `model`'s wrapper, all of them or none.

    Raises ValueError that names the file and the first differences.
    """
    loadable(model).load_state_dict(_weights_for(model, state_dict, path))


def _weights_for(model: nn.Module, state_dict: Mapping[str, Any], path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return `state_dict` with the names of the module behind `model`'s wrapper. Raises as `load_weights`."""
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
    return shard_model_state(state, own)


def _state_for(target: Any, state: Any) -> Any:
    """Return a state as `target` holds it: sharded, where its tensors are."""
    if isinstance(target, torch.optim.Optimizer):
        return shard_optimizer_state(state, target)
    if isinstance(target, nn.Module):
        return shard_model_state(state, target.state_dict())
    return state


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
                raise zipfile.BadZipFile(f"bad checksum in {damaged}")
        content = torch.load(path, map_location=map_location, weights_only=True)
    except Exception as error:  # what a damaged pickle raises is anybody's guess
        refused = _refused_class(error)
        if refused is None:
            raise ValueError(
                f"checkpoint {path} is damaged, or no checkpoint ({_first_line(error)}); use an older one"
            ) from error
        raise ValueError(
            f"checkpoint {path} is not loaded: it holds a {refused}, and unpickling more than weights and plain values "
            "can run code; save state_dicts instead of whole objects"
        ) from error
    if not isinstance(content, dict) or "model" not in content:
        raise ValueError(f"checkpoint {path} has no 'model' entry; it was not written by save_checkpoint")
    return content


def write_atomically(content: Any, path: Path) -> None:
    """Write `content` with torch.save to `path` through a temporary file and a rename, durable when it returns.

    Raises OSError that names the file, the free space and the remedy, and ValueError for content that
    `weights_only=True` would refuse to load; the old file at `path` is then as it was.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(temporary, "wb") as file:
            torch.save(content, file)
            file.flush()
            os.fsync(file.fileno())
        torch.load(str(temporary), mmap=True, map_location="cpu", weights_only=True)  # mmap: reads the structure alone
        os.replace(temporary, path)
    except pickle.UnpicklingError as error:
        temporary.unlink()
        raise ValueError(
            f"checkpoint {path} is not written: it would hold a {_refused_class(error)}, which weights_only=True "
            "refuses to load; save float(x) of a numpy scalar, str(x) of a path, vars(x) of a namespace"
        ) from error
    except (OSError, RuntimeError) as error:  # torch wraps an OSError of the file in a RuntimeError
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise OSError(
            f"could not write checkpoint {path}: {_first_line(error)} ({_free_mib(path.parent)} MiB free); make "
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


def _refused_class(error: BaseException) -> str | None:
    """Return the name of the class that `weights_only=True` refused, None if `error` says something else."""
    found = re.search(r"[Uu]nsupported (?:global: GLOBAL|GLOBAL|class) (\S+)", str(error))
    return found.group(1) if isinstance(error, pickle.UnpicklingError) and found else None


def _first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]


def _free_mib(folder: Path) -> int | str:
    try:
        return shutil.disk_usage(folder).free // 2**20
    except OSError:
        return "?"
