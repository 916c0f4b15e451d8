"""A folder per training run: `log/001_deeplabv3p_r50_synthetic`, numbered so that nothing is overwritten."""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path

RUN_NAME = re.compile(r"(\d{3,})_.+")


class LogFolderError(OSError):
    """The log folder cannot be used."""

    is_explained = True


def require_log_folder(logdir: str) -> None:
    """Raise LogFolderError unless `logdir` is a writable folder, or can be created; no file is left there."""
    existing = Path(logdir).absolute()
    while not existing.exists() and not existing.is_symlink():
        existing = existing.parent
    if not existing.is_dir():
        word = "" if existing == Path(logdir).absolute() else f" cannot be made: {existing}"
        raise LogFolderError(f"log folder {logdir}{word} is not a folder; choose another --logdir")
    try:
        tempfile.TemporaryFile(dir=existing, prefix=".retrofit").close()
    except OSError as error:
        raise LogFolderError(
            f"cannot write to log folder {logdir}: {existing} takes no file ({error.strerror}); choose another --logdir"
        ) from None


def new_run_folder(logdir: str, name: str) -> Path:
    """Create and return the next numbered folder for a run called `name`.

    Raises LogFolderError when `logdir` is not a folder.
    """
    try:
        Path(logdir).mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise LogFolderError(f"log folder {logdir} is not a folder; choose another --logdir") from None
    runs = run_folders(logdir)
    number = int(RUN_NAME.fullmatch(runs[0].name).group(1)) + 1 if runs else 1  # type: ignore[union-attr]
    while True:
        folder = Path(logdir) / f"{number:03d}_{name}"
        try:
            folder.mkdir()
            return folder
        except FileExistsError:  # another training started at the same moment
            number += 1


def replace_text(path: Path, text: str) -> None:
    """Write a text file of a run, atomically. Raises LogFolderError."""
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)  # retrofit: ignore[RF508]
        raise LogFolderError(f"could not write {path}: {error}; make room or choose another --logdir") from error


def run_folders(logdir: str) -> list[Path]:
    """Return the run folders in `logdir`, the newest (highest number) first."""
    folder = Path(logdir)
    if not folder.is_dir():
        return []
    found = [
        (int(match.group(1)), path)
        for path in folder.iterdir()
        if (match := RUN_NAME.fullmatch(path.name)) and path.is_dir()
    ]
    return [path for _, path in sorted(found, reverse=True)]
