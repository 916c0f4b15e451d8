"""A run's private copy of the user's project: small files are copied, large ones and data sets are linked."""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from retrofit.verify.trace.filesystem.snapshot import relocated

MIB = 2**20
MOST_COPIED_MIB = 200  # of all files together, beyond it only what a program consists of is copied
MOST_COPIED_FILES = 5000
PROGRAM_SUFFIXES = (".py", ".yaml", ".yml", ".json", ".toml", ".sh", ".txt", ".cfg")
SKIPPED = {"__pycache__", ".mypy_cache", ".ruff_cache", ".pytest_cache", ".tox", ".nox", "node_modules"}
LINKED = {".venv", "venv", ".git/objects", ".git/lfs", ".git/annex", ".git/modules"}


@dataclass
class CopyReport:
    """What became of the entries of a project. `linked_folders` are relative to it."""

    num_copied: int = 0
    num_linked: int = 0
    linked_folders: list[str] = field(default_factory=list)
    num_skipped: int = 0  # unreadable, or not a file


def copy_project(
    source: Path,
    target: Path,
    *,
    max_copied_mib: float = 1.0,
    max_entries: int = 2000,
    leave_out: Collection[Path] = (),
) -> CopyReport:
    """Make `target` a copy of the project `source` in which a run may read and write like in the original.

    Files of up to `max_copied_mib` are copied, larger ones linked. A folder with more than `max_entries` entries in
    it and below, unless Python code lies in it, is linked as a whole. Symbolic links point where they did, those
    within the project to the same place in the copy. Caches, `target` itself and `leave_out` are not in the copy. Git's
    own folder is: scripts log their commit.

    The links are safe only for a traced process (trace/filesystem/private_copy.py): any other one that writes through
    them changes the original. Raises ValueError for a `source` that is not a folder, FileExistsError for a `target`
    that exists.
    """
    source = Path(os.path.realpath(source))
    if not source.is_dir():
        raise ValueError(f"project {source} is not a folder; give the folder that holds the training script")
    left_out = {os.path.realpath(folder) for folder in (target, *leave_out)}
    target.parent.mkdir(parents=True, exist_ok=True)
    copy = _Copy(str(source), int(max_copied_mib * MIB), max_entries, left_out)
    copy.folder(str(source), str(target))
    return copy.report


def own_folder(folder: Path, copy: Path) -> None:
    """Make `folder` a folder of the `copy` itself, where it is missing or reached through a link: of links, then."""
    if folder == copy:
        return
    own_folder(folder.parent, copy)
    if folder.is_symlink():
        entries = list(folder.resolve().iterdir())
        folder.unlink()
        folder.mkdir()
        for entry in entries:
            (folder / entry.name).symlink_to(entry)
    folder.mkdir(exist_ok=True)


class _Copy:
    def __init__(self, root: str, max_bytes: int, max_entries: int, left_out: set[str]) -> None:
        self.report = CopyReport()
        self._root = root
        self._max_bytes = max_bytes
        self._max_entries = max_entries
        self._left_out = left_out
        self._bytes_left = MOST_COPIED_MIB * MIB

    def folder(self, source: str, target: str) -> None:
        os.mkdir(target)
        try:
            with os.scandir(source) as found:
                entries = sorted(found, key=lambda entry: entry.name)
        except PermissionError:
            self.report.num_skipped += 1
            return
        is_crowded = len(entries) > self._max_entries
        for entry in entries:
            copy = os.path.join(target, entry.name)
            with suppress(FileNotFoundError):  # gone since we listed it
                if entry.is_symlink():
                    self._link(relocated(entry.path, self._root), copy)
                elif entry.is_dir():
                    self._subfolder(entry, copy)
                elif entry.is_file():
                    self._file(entry, copy, is_crowded)
                else:
                    self.report.num_skipped += 1

    def _subfolder(self, entry: os.DirEntry[str], copy: str) -> None:
        if entry.name in SKIPPED or entry.path in self._left_out:
            return
        if self._is_linked(entry):
            self.report.linked_folders.append(os.path.relpath(entry.path, self._root))
            self._link(entry.path, copy)
        else:
            self.folder(entry.path, copy)

    def _is_linked(self, entry: os.DirEntry[str]) -> bool:
        parent = os.path.basename(os.path.dirname(entry.path))
        if entry.name in LINKED or f"{parent}/{entry.name}" in LINKED or _is_environment(entry.path):
            return True
        return entry.name != ".git" and self._has_many_entries(entry.path) and not _holds_code(entry.path)

    def _has_many_entries(self, folder: str) -> bool:
        num_entries, folders = 0, [folder]
        while folders:
            with suppress(PermissionError), os.scandir(folders.pop()) as entries:
                for entry in entries:
                    num_entries += 1
                    if num_entries > self._max_entries:
                        return True
                    if entry.name not in SKIPPED and entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)
        return False

    def _file(self, entry: os.DirEntry[str], copy: str, is_crowded: bool) -> None:
        size = entry.stat().st_size
        is_program = entry.name.endswith(PROGRAM_SUFFIXES)
        is_beyond = is_crowded or size > self._bytes_left or self.report.num_copied >= MOST_COPIED_FILES
        # Git takes no link for its HEAD, and would write its index through one.
        is_git = f"{os.sep}.git{os.sep}" in entry.path
        if not is_git and (size > self._max_bytes or (is_beyond and not is_program)):
            self._link(entry.path, copy)
            return
        try:
            shutil.copy2(entry.path, copy)
        except PermissionError:
            self.report.num_skipped += 1
            return
        self.report.num_copied += 1
        self._bytes_left -= size

    def _link(self, place: str, copy: str) -> None:
        os.symlink(place, copy)
        self.report.num_linked += 1


def _is_environment(folder: str) -> bool:
    """Return whether `folder` is an environment of venv or of conda, which may have any name."""
    return any(os.path.exists(os.path.join(folder, mark)) for mark in ("pyvenv.cfg", "conda-meta"))


def _holds_code(folder: str) -> bool:
    """Return whether modules or packages lie right in `folder`: they look for files next to themselves."""
    with suppress(PermissionError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith(".py"):
                return True
            if entry.is_dir() and os.path.exists(os.path.join(entry.path, "__init__.py")):
                return True
    return False
