"""Files that are written whole or not at all, and what is said when one cannot be written."""

from __future__ import annotations

import contextlib
import errno
import os
import pickle
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

FULL = {errno.ENOSPC: "the disk is full", errno.EDQUOT: "the quota of the disk is used up"}


class WriteError(OSError):
    """A checkpoint cannot be written."""

    is_explained = True


def write_atomically(content: Any, path: Path, checkpoint: Path | None = None) -> None:
    """Write `content` with torch.save to `path` through a temporary file and a rename, durable when it returns.

    `checkpoint` is what an error calls it, if not `path`. Raises OSError that names the file, the free space and the
    remedy, and ValueError for content that `weights_only=True` would refuse to load; the old file at `path` is then as
    it was.
    """
    checkpoint = checkpoint or path
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
            f"checkpoint {checkpoint} is not written: it would hold a {refused_class(error)}, which weights_only=True "
            "refuses to load; save float(x) of a numpy scalar, str(x) of a path, vars(x) of a namespace"
        ) from error
    except (OSError, RuntimeError) as error:  # torch wraps an OSError of the file in a RuntimeError
        failure = write_error(checkpoint, error, num_bytes(content))
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise failure from error
    except BaseException:  # what an object's own pickling raises
        temporary.unlink(missing_ok=True)
        raise


def write_error(checkpoint: Path, error: BaseException, to_write: int = 0) -> WriteError:
    """Return what to raise when a checkpoint cannot be written: its name, the cause, the space and the remedy.

    `to_write`: its size in bytes, as far as is known. Call it before what was written of it is removed.
    """
    cause = next((each for each in _chain(error) if isinstance(each, OSError) and each.errno), error)
    text = FULL.get(getattr(cause, "errno", None) or 0, "")
    text = f"{text}, {first_line(cause)}" if text else first_line(cause)
    space = f"{_mib(to_write)} to write, " if to_write else ""
    return WriteError(
        f"could not write checkpoint {checkpoint}: {text} ({space}{_free(checkpoint.parent)} free); make room or "
        "choose another folder; the checkpoints already written are unchanged"
    )


def num_bytes(content: Any) -> int:
    """Return the size of the tensors in nested dicts and lists."""
    if isinstance(content, torch.Tensor):
        return content.numel() * content.element_size()
    if isinstance(content, Mapping):
        return sum(map(num_bytes, content.values()))
    return sum(map(num_bytes, content)) if isinstance(content, (list, tuple)) else 0


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def copy_atomically(source: Path, target: Path) -> None:
    """Make `target` a second name of `source` (a copy where links are not possible), replacing it in one step."""
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    temporary.unlink(missing_ok=True)
    try:
        os.link(source, temporary)
    except OSError:
        shutil.copyfile(source, temporary)
    os.replace(temporary, target)


def refused_class(error: BaseException) -> str | None:
    """Return the name of the class that `weights_only=True` refused, None if `error` says something else."""
    found = re.search(r"[Uu]nsupported (?:global: GLOBAL|GLOBAL|class) (\S+)", str(error))
    return found.group(1) if isinstance(error, pickle.UnpicklingError) and found else None


def first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]


def _free(folder: Path) -> str:
    try:
        return _mib(shutil.disk_usage(folder).free)
    except OSError:
        return "? MiB"


def _mib(size: int) -> str:
    return f"{size / 2**20:.1f} MiB"
