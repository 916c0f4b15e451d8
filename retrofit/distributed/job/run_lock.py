"""One training at a time in a run's folder: a file there names the process that trains, until it ends."""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from .process_identity import is_alive, own_identity

LOCK_FILE = ".in_use_by"  # in a run's folder; empty when nothing trains there
_held: dict[Path, int] = {}  # with the process that took the lock: a forked one does not have it


class RunInUse(RuntimeError):
    """Another process trains in this run's folder."""

    is_explained = True


def lock_run(folder: Path, launchers: Sequence[str]) -> None:
    """Note in `folder` that this process trains there, until `release_runs` or its end; for rank 0 alone.

    A process that has ended, however it did, holds no lock, nor does the one of the run that this folder is a copy of.
    One of another machine may still run, unless it is of the same job, which a launcher (`launchers` are the identities
    of this job's) or SLURM has started again. Raises RunInUse, and OSError when the file cannot be written.
    """
    path = folder / LOCK_FILE
    own = {**own_identity(), "since": time.strftime("%Y-%m-%d %H:%M:%S"), "launchers": list(launchers)}
    own["folder"] = folder.stat().st_ino  # a path may be another one on another machine
    own["slurm"] = [os.environ.get(name, "") for name in ("SLURM_JOB_ID", "SLURM_RESTART_COUNT")]
    with _opened(path) as file:
        holder = _parsed(file.read())
        if holder is not None and holder.get("folder", own["folder"]) == own["folder"]:
            _refuse_second(holder, own, path)
        file.seek(0)
        file.truncate()
        json.dump(own, file)
    if not _held:
        atexit.register(release_runs)
    _held[path] = os.getpid()


def release_runs() -> None:
    """Give back what this process has locked: `cleanup_distributed` and the interpreter's end do it."""
    for path, pid in list(_held.items()):
        if pid != os.getpid():
            continue
        del _held[path]
        with contextlib.suppress(OSError), _opened(path) as file:
            holder = _parsed(file.read())
            if holder is not None and _is_same(holder, own_identity()):
                file.truncate(0)


def _refuse_second(holder: Mapping[str, Any], own: Mapping[str, Any], path: Path) -> None:
    alive = None if _is_same(holder, own) else is_alive(holder)  # type: ignore[arg-type]
    if alive is False or _is_same(holder, own):
        return
    who = f"process {holder['pid']} on {holder['host']} trains in {path.parent} since {holder.get('since', '?')}"
    if alive:
        raise RunInUse(f"{who}; wait for it or end it, or start another run without --resume")
    if not _is_started_again(holder, own):
        raise RunInUse(f"{who}, and cannot be seen from here; if it has ended, remove {path}")


def _is_started_again(holder: Mapping[str, Any], own: Mapping[str, Any]) -> bool:
    """Return whether this is the holder's job, which its launcher or SLURM ended before it started it again."""
    job, restarts = own["slurm"]
    was_requeued = bool(job) and bool(restarts) and holder.get("slurm", [""])[0] == job
    is_restart = was_requeued and holder["slurm"] != own["slurm"]
    return is_restart or bool(set(holder.get("launchers", ())) & set(own["launchers"]))


def _is_same(holder: Mapping[str, Any], own: Mapping[str, Any]) -> bool:
    return all(holder[name] == own[name] for name in ("machine", "pid", "started"))


def _parsed(text: str) -> dict[str, Any] | None:
    """Return what a lock says, None for an empty one or one whose writer was killed while it wrote."""
    with contextlib.suppress(ValueError):
        found = json.loads(text)
        if isinstance(found, dict) and all(name in found for name in own_identity()):
            return found
    return None


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[IO[str]]:
    """Open a lock to read and write, alone; on a disk without file locks two may do so within microseconds."""
    with open(os.open(path, os.O_RDWR | os.O_CREAT, 0o666), "r+", encoding="utf-8") as file:
        with contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)
        yield file
