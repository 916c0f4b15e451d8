"""Find the checkpoint to continue from, among those that a run leaves in its folder."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .checkpoint import copy_atomically, read_checkpoint, save_checkpoint
from .output import print_main
from .process_group import is_main_process
from .reduce import broadcast_object, raise_together

# Named by position, not by step: steps are counted differently at another world size.
CHECKPOINT_NAME = "checkpoint_{epoch:04d}_{samples:08d}.pt"
CHECKPOINT_PATTERN = re.compile(r"checkpoint_(\d+)_(\d+)\.pt")
BEST_NAME = "best.pt"
KEEP_LAST = 2  # the newest and the one to fall back to


def save_position(folder: Path, epoch: int, samples: int, *, is_best: bool, **content: Any) -> Path:
    """Save the checkpoint of `epoch` finished epochs and `samples` samples of the next; drop all but the newest two.

    `best.pt` becomes a second name of it if it is the best. Collective: every rank. `content` goes to
    `save_checkpoint`, whose errors it raises.
    """
    path = folder / CHECKPOINT_NAME.format(epoch=epoch, samples=samples)
    save_checkpoint(path=path, epoch=epoch, **content)
    error: OSError | None = None
    if is_main_process():
        try:
            if is_best:
                copy_atomically(path, folder / BEST_NAME)
            for old in checkpoints_in(folder)[KEEP_LAST:]:
                old.unlink()
        except OSError as failure:
            error = failure
    raise_together(error)
    return path


def checkpoints_in(folder: Path) -> list[Path]:
    """Return the checkpoints of a run's folder, the one that got furthest first."""
    found = [
        (int(match.group(1)), int(match.group(2)), path)
        for path in folder.glob("checkpoint_*.pt")
        if (match := CHECKPOINT_PATTERN.fullmatch(path.name))
    ]
    return [path for _, _, path in sorted(found, reverse=True)]


def is_newest_checkpoint(path: Path) -> bool:
    """Return whether `path` is the furthest checkpoint of its run, so that the run can go on in the same folder."""
    return checkpoints_in(path.parent)[:1] == [path]


def find_checkpoint(resume: str, runs: Sequence[Path], *, to_train: bool) -> Path | None:
    """Return the checkpoint that `resume` means, decided on rank 0 for all. Collective: every rank.

    `resume` is a file, a run's folder, or "auto": the first of `runs` (newest first). To train on, that is the newest
    checkpoint that can be read (damaged newer ones are reported and set aside), or None when the newest run has none
    yet; to test or predict it is the best one, of the newest run that has any.

    Raises FileNotFoundError when there is nothing to test, ValueError when all of a run's checkpoints are damaged.
    """
    path: Path | None = None
    error: Exception | None = None
    if is_main_process():
        try:
            path = _find(resume, runs, to_train)
        except (OSError, ValueError) as failure:
            error = failure
    raise_together(error)
    return broadcast_object(path)


def _find(resume: str, runs: Sequence[Path], to_train: bool) -> Path | None:
    if resume != "auto":
        if Path(resume).is_dir():
            return _newest_good(Path(resume)) if to_train else _best(Path(resume))
        if not Path(resume).is_file():
            raise FileNotFoundError(f"no checkpoint at {resume}; give a checkpoint, a run's folder, or auto")
        return Path(resume)
    if to_train:
        if runs and checkpoints_in(runs[0]):
            return _newest_good(runs[0])
        print_main(f"notice: nothing to resume in {runs[0] if runs else 'the log folder'}; starting from the beginning")
        return None
    for run in runs:
        if checkpoints_in(run):
            return _best(run)
    raise FileNotFoundError("no run with a checkpoint in the log folder; train first, or give --resume PATH")


def _best(folder: Path) -> Path:
    return folder / BEST_NAME if (folder / BEST_NAME).is_file() else _newest_good(folder)


def _newest_good(folder: Path) -> Path:
    damaged: list[Path] = []
    for path in checkpoints_in(folder):
        try:
            read_checkpoint(path)
        except ValueError as error:
            print_main(f"notice: {error}")
            damaged.append(path)
            continue
        for newer in damaged:  # or it would be kept as "newest" while good ones are dropped
            newer.rename(newer.with_name(newer.name + ".damaged"))
        return path
    if not damaged:
        raise FileNotFoundError(f"no checkpoint in {folder}; give a run's folder (log/001_...), a checkpoint, or auto")
    raise ValueError(f"no readable checkpoint in {folder} ({len(damaged)} damaged); start without --resume")
