"""torchrun started the workers again after one died: find the folder that this very job has been writing to."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..checkpoint.atomic_file import WriteError
from ..checkpoint.checkpoint_files import checkpoints_in, find_checkpoint, is_newest_checkpoint, remove_unfinished
from ..checkpoint.full import read_checkpoint
from ..collectives import broadcast_object, gather_objects, raise_together
from ..output import answer_of_main, print_main
from ..process.process_group import is_main_process
from .run_lock import RunInUse, lock_run

LAUNCHERS_FILE = ".launched_by"  # in a run's folder: one line per launcher that has written there


def launcher_identity(environ: Mapping[str, str] | None = None) -> str | None:
    """Return a name for the launcher of this process, the same after a restart as before, or None without torchrun.

    TORCHELASTIC_RUN_ID does not: it is "none" for every job that meets at a given address. The folder that a launcher
    makes for its workers' error files (`<folder>/attempt_<n>/<local rank>/error.json`) has a random name of its own.
    """
    environ = os.environ if environ is None else environ
    error_file = Path(environ.get("TORCHELASTIC_ERROR_FILE", ""))
    if len(error_file.parts) < 4 or not error_file.parts[-3].startswith("attempt_"):
        return None
    return str(error_file.parents[2])


def read_resumed(resume: str, runs: Sequence[Path]) -> dict[str, Any] | None:
    """Return the content of the checkpoint that a training continues from, None to start from the beginning.

    `resume` as in `find_checkpoint`, or "" for none; after a restart by torchrun this job's own run comes first. The
    content has the checkpoint's "path" and, for `open_run`, "is_newest". `runs`: the run folders, newest first.
    Collective: every rank. Raises what `find_checkpoint` and `read_checkpoint` raise.
    """
    resume = _own_run_first(resume, runs)
    path = find_checkpoint(resume, runs, to_train=True) if resume else None
    if path is None:
        return None
    is_newest = str(path) != resume or is_newest_checkpoint(path)  # a run under way may have saved the next by now
    return {**read_checkpoint(path, whole=False), "path": path, "is_newest": is_newest}


def open_run(runs: Sequence[Path], create: Callable[..., Path], *args: Any, checkpoint: Any = None) -> Path:
    """Return the folder of this training, the same on every rank, and lock it for this job until rank 0 ends.

    That is the folder of `checkpoint` (of `read_resumed`, or None) where that is its run's newest; after a restart by
    torchrun that of this job; else what `create(*args)` returns on rank 0. `runs`: the run folders, newest first. What
    killed writers have left in the folder is removed. Collective: every rank, before the first save. Raises
    RuntimeError when another process trains there or has continued that run since `checkpoint` was read, OSError on
    rank 0 where it cannot write, and RuntimeError then on the others.
    """
    continues = checkpoint is not None and checkpoint["is_newest"]
    folder = Path(checkpoint["path"]).parent if continues else own_run(runs)
    if folder is None:  # a job that was restarted before its first checkpoint has one nevertheless
        folder = answer_of_main(create, *args)
    claim_run(folder)
    if continues and not is_newest_checkpoint(checkpoint["path"]):
        raise RuntimeError(f"another training has continued {folder} in the meantime; start this one again")
    return folder


def own_run(runs: Sequence[Path]) -> Path | None:
    """Return the newest of `runs` that this job wrote to before torchrun restarted it; None at its first start.

    Collective: every rank. Another job's run is never returned, however new it is.
    """
    identities = set(_identities())
    found = None
    if identities and is_main_process():
        found = next((run for run in runs if identities & _launchers_of(run)), None)
    return broadcast_object(found) if identities else None


def _own_run_first(resume: str, runs: Sequence[Path]) -> str:
    """Return what `find_checkpoint` shall resume: after a restart this job's own run, else `resume` as it was given.

    Collective: every rank. A job that died before its first checkpoint starts as it did before, but not from what
    "auto" would find by now: that is another job's.
    """
    own = own_run(runs)
    if own is None:
        return resume
    has_checkpoint = broadcast_object(bool(checkpoints_in(own)))
    print_main(f"notice: started again after a failure, continuing with {own}")
    return str(own) if has_checkpoint else "" if resume == "auto" else resume


def claim_run(folder: Path) -> None:
    """Make a run's folder this job's until rank 0 ends, and remove what killed writers have left there.

    Under torchrun it also notes there that this job writes to it, for `own_run`. Collective: every rank, before the
    first save. Raises on rank 0 RunInUse (a RuntimeError) where another process trains there, OSError where it cannot
    write, and RuntimeError on the others.
    """
    identities = _identities()
    error: Exception | None = None
    if is_main_process():
        try:
            lock_run(folder, identities)
            remove_unfinished(folder)
            _note_launchers(folder, identities)
        except RunInUse as failure:
            error = failure
        except OSError as failure:
            error = WriteError(f"cannot write to {folder}: {failure}; make room or choose another folder")
    raise_together(error)


def _note_launchers(folder: Path, identities: Sequence[str]) -> None:
    new = [identity for identity in identities if identity not in _launchers_of(folder)]
    if new:
        with (folder / LAUNCHERS_FILE).open("a", encoding="utf-8") as file:
            file.writelines(f"{identity}\n" for identity in new)


def _identities() -> list[str]:
    """Return the identities of the launchers of all ranks, each once: rank 0 may start on another node next time."""
    return sorted({identity for identity in gather_objects(launcher_identity()) if identity})


def _launchers_of(run: Path) -> set[str]:
    try:
        return set((run / LAUNCHERS_FILE).read_text(encoding="utf-8").splitlines())
    except (OSError, UnicodeDecodeError):
        return set()
