"""A copy of a run's project as it is at one moment. Standard library only: the command line uses it too."""

from __future__ import annotations

import os
import shutil
import time
from contextlib import suppress
from pathlib import Path

from .own_work import own_work

LONGEST_WAIT_S = 8.0  # for a rank that may never come; below --hang-after, which would name this place


def snapshot_of_ranks(source: Path, target: Path, rank: int, world_size: int) -> None:
    """Copy `source` to `target` on rank 0, as all ranks have left it: each calls this. Only the first copy is made."""
    with own_work():
        target.parent.mkdir(parents=True, exist_ok=True)
        _arrival(target, rank).touch()
    if rank or target.exists():
        return
    end = time.monotonic() + LONGEST_WAIT_S
    while time.monotonic() < end and not all(_arrival(target, other).exists() for other in range(world_size)):
        time.sleep(0.005)
    snapshot(source, target)


def _arrival(target: Path, rank: int) -> Path:
    return target.with_name(f"{target.name}.rank{rank}")


def snapshot(source: Path, target: Path) -> None:
    """Copy `source` to `target`, which appears whole or not at all: files are copied, links stay links.

    Not even large files become hard links: a training that writes its checkpoint in place would change both. What
    vanishes meanwhile, cannot be read or is not a file is left out. Raises FileExistsError when there is a `target`.
    """
    source, target = Path(os.path.realpath(source)), Path(os.path.realpath(target))
    if target.exists():
        raise FileExistsError(f"snapshot {target} exists; give a folder that does not exist yet")
    temporary = target.with_name(f"{target.name}.tmp")
    with own_work():
        if temporary.exists():
            shutil.rmtree(temporary)  # of a process that was killed
        target.parent.mkdir(parents=True, exist_ok=True)
        _copy_folder(str(source), str(temporary), str(source), {str(temporary), str(target)})
        os.rename(temporary, target)


def relocated(link: str, root: str) -> str:
    """Return what a copy of `link` points to in a copy of `root`, the same thing or, inside `root`, the copy of it.

    `root` and the folder of `link` have no links in their paths.
    """
    folder = os.path.dirname(link)
    parent, name = os.path.split(os.path.normpath(os.path.join(folder, os.readlink(link))))
    place = os.path.join(os.path.realpath(parent), name)
    is_inside = place == root or place.startswith(root + os.sep)
    return os.path.relpath(place, folder) if is_inside else place


def _copy_folder(source: str, target: str, root: str, leave_out: set[str]) -> None:
    os.mkdir(target)
    with os.scandir(source) as entries:
        found = list(entries)
    for entry in found:
        copy = os.path.join(target, entry.name)
        with suppress(FileNotFoundError, PermissionError):
            if entry.is_symlink():
                os.symlink(relocated(entry.path, root), copy)
            elif entry.is_dir():
                if entry.path not in leave_out:
                    _copy_folder(entry.path, copy, root, leave_out)
            elif entry.is_file():
                shutil.copy2(entry.path, copy)
