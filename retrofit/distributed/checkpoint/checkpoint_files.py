"""Checkpoint files of a run: their names, the newest, the best, and those that are dropped."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..collectives import broadcast_object, raise_together
from ..output import print_main
from ..process.options import get_option
from ..process.process_group import is_main_process
from .async_save import finish_saves
from .atomic_file import copy_atomically
from .epochs import ResumableEpochs
from .full import read_checkpoint, save_checkpoint
from .saved_options import without_place
from .sharded import remove_folder
from .stored_tensors import is_sharded_checkpoint

# Named by position, not by step: steps are counted differently at another world size.
CHECKPOINT_NAME = "checkpoint_{epoch:04d}_{samples:08d}{ending}"
CHECKPOINT_PATTERN = re.compile(r"checkpoint_(\d+)_(\d+)\.(?:pt|dcp)")
ENDINGS = {"full": ".pt", "sharded": ".dcp"}  # of a file and of a folder, see save_checkpoint
BEST_STEM = "best"
KEEP_LAST = 2  # the newest and the one to fall back to


def save_position(folder: Path, epoch: int, samples: int, *, is_best: bool, **content: Any) -> Path:
    """Save the checkpoint of `epoch` finished epochs and `samples` samples of the next; drop all but the newest two.

    `--ckpt` says whether it is a file (.pt) or a folder (.dcp), `--async_save` whether it is complete on return. If it
    is the best, `best.pt` becomes a second name of it, or `best.dcp` a link to it, which is kept then. Collective:
    every rank. `content` goes to `save_checkpoint`, whose errors it raises; its "options" without those of the machine.
    """
    if "options" in content:
        content["options"] = without_place(content["options"])
    path = folder / CHECKPOINT_NAME.format(epoch=epoch, samples=samples, ending=ENDINGS[get_option("ckpt")])

    def settle() -> None:
        if is_best:
            make_best(path)
        drop_old(folder)

    save_checkpoint(path=path, epoch=epoch, then=settle, **content)
    return path


def restore_position(epochs: ResumableEpochs, content: Mapping[str, Any], samples: int | None = None) -> None:
    """Let `epochs` continue at the position of a checkpoint, which `content` holds as "position" and "rng_states".

    What follows is bit for bit what would have followed, unless the layout (number of ranks, batch, workers) differs,
    which rank 0 says then. `samples` as in `ResumableEpochs.resume`. Every rank that trains must call it.
    """
    changes = epochs.resume(content["position"], content["rng_states"], samples)
    if changes:
        shown = ", ".join(f"{name} {before} -> {now}" for name, (before, now) in changes.items())
        print_main(f"notice: resumed with {shown}; augmentation draws new random numbers from here on")


def make_best(path: Path) -> None:
    """Let `best.pt` or `best.dcp` be this checkpoint, and the other of the two be gone."""
    best = path.with_name(BEST_STEM + path.suffix)
    if is_sharded_checkpoint(path):
        link = path.with_name(f".{best.name}.tmp")
        link.unlink(missing_ok=True)
        link.symlink_to(path.name)
        if best.is_dir() and not best.is_symlink():  # a run that was copied without its links
            remove_folder(best)
        os.replace(link, best)
    else:
        copy_atomically(path, best)
    for other in _bests_in(path.parent):
        if other.suffix != path.suffix:
            _drop(other)


def drop_old(folder: Path) -> None:
    """Drop all checkpoints but the newest two and the best, and what killed processes left of sharded ones."""
    kept = {best.resolve() for best in _bests_in(folder)}
    for old in checkpoints_in(folder)[KEEP_LAST:]:
        if old.resolve() not in kept:
            _drop(old)
    for left in (*folder.glob(".*.dcp.tmp"), *folder.glob(".*.dcp.former")):
        shutil.rmtree(left)


def remove_unfinished(folder: Path) -> None:
    """Remove what writers that were killed have left of checkpoints; for the holder of the run's lock (run_lock.py)."""
    for pattern in (".checkpoint_*.tmp", f".{BEST_STEM}.*.tmp"):
        for left in folder.glob(pattern):
            if left.is_dir() and not left.is_symlink():
                shutil.rmtree(left, ignore_errors=True)
            else:
                left.unlink(missing_ok=True)


def _drop(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        remove_folder(path)
    else:
        path.unlink()


def checkpoints_in(folder: Path) -> list[Path]:
    """Return the checkpoints of a run's folder, files and complete folders, the one that got furthest first."""
    found = [
        (int(match.group(1)), int(match.group(2)), path)
        for path in folder.glob("checkpoint_*")
        if (match := CHECKPOINT_PATTERN.fullmatch(path.name))
        and (path.suffix == ENDINGS["full"] or is_sharded_checkpoint(path))
    ]
    return [path for _, _, path in sorted(found, reverse=True)]


def is_newest_checkpoint(path: Path) -> bool:
    """Return whether `path` is the furthest checkpoint of its run, so that the run can continue in the same folder."""
    return checkpoints_in(path.parent)[:1] == [path]


def find_checkpoint(resume: str, runs: Sequence[Path], *, to_train: bool) -> Path | None:
    """Return the checkpoint that `resume` means, decided on rank 0 for all. Collective: every rank.

    `resume` is a checkpoint, a run's folder, or "auto": the first of `runs` (newest first). To train on, that is the
    newest checkpoint that can be read (damaged newer ones are reported and set aside), or None when the newest run has
    none yet; to test or predict it is the best one, of the newest run that has any.

    Raises FileNotFoundError when there is nothing to test, ValueError when all of a run's checkpoints are damaged.
    """
    finish_saves()
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
        if is_sharded_checkpoint(Path(resume)):
            return Path(resume)
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
    bests = _bests_in(folder)
    return max(bests, key=lambda path: path.lstat().st_mtime) if bests else _newest_good(folder)


def _bests_in(folder: Path) -> list[Path]:
    """Return what there is of best.pt and best.dcp: one, but for the moment in which one takes the other's place."""
    bests = [folder / (BEST_STEM + ending) for ending in ENDINGS.values()]
    return [best for best in bests if best.is_file() or is_sharded_checkpoint(best)]


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
