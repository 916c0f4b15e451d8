"""Write the files of a conversion, all or none, however the process ends."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from retrofit.analysis.files.start import Start

from .confined import NEW_FILE, NEW_PROGRAM, Confined, State, WriteError, digest
from .journal import (
    COMPLETE,
    FOLDER,
    IGNORE,
    ORIGINALS,
    Entry,
    Journal,
    check_path,
    keep_original,
    read_journals,
    save,
    tidy,
)
from .undo import take_back

__all__ = ["WriteError", "write_all"]


def write_all(root: Path, files: dict[Path, bytes], start: Start) -> int:
    """Write the files of the conversion of a script, and return how many were not there yet or were different.

    Each is written in one step, new ones first, and before them a journal: when this process is killed,
    `undo.recover` finds it. Whatever else ends the writing has everything restored before it is raised; an OSError
    becomes a WriteError. No link is followed, and nothing is written outside `root`.
    """
    with Confined(root) as inside:
        inside.lock()
        contents = {_relative(inside, path): data for path, data in files.items()}
        journals = read_journals(inside)
        number = max((journal.number for journal in journals), default=0) + 1
        relative = _relative(inside, start.entry)
        tidy(inside, journals)
        try:
            entries, folders = _plan(inside, contents, relative)
            journal = Journal(number, relative, entries, folders, module=start.module, search_path=start.folders)
            _write(inside, journal, contents)
            return sum(entry.is_changed for entry in journal.entries)
        except OSError as error:
            place = error.filename or inside.root
            raise WriteError(f"{place}: {error.strerror}; nothing was changed") from error
        finally:
            tidy(inside, read_journals(inside))


def real_places(root: Path, paths: list[Path]) -> list[Path]:
    """Return where files of the user's are that may be links. Raises WriteError for those that may not be written."""
    places = [Path(os.path.realpath(path)) for path in paths]
    with Confined(root) as inside:
        for path, place in zip(paths, places):
            try:
                _relative(inside, place)
            except WriteError as error:
                raise WriteError(f"{path} is a link: {error}" if path.is_symlink() else str(error)) from error
    return places


def _relative(inside: Confined, path: Path) -> str:
    try:
        return check_path(inside.relative(path))
    except ValueError as error:
        raise WriteError(str(error)) from error


def _plan(inside: Confined, contents: dict[str, bytes], script: str) -> tuple[list[Entry], list[str]]:
    """Return the entries of the journal, new files first and the script last, and the folders that are missing."""
    entries, folders = [], dict[str, None]()
    for path, data in contents.items():
        before = inside.state(path)
        if before is not None and before.sha256 != digest(data) and not inside.is_writable(path):
            raise PermissionError(13, "read-only", str(inside.root / path))
        new_mode = NEW_PROGRAM if path.endswith(".sh") else NEW_FILE
        entries.append(Entry(path, before, State(digest(data), before.mode if before else new_mode)))
        parts = path.split("/")[:-1]
        above = ["/".join(parts[: number + 1]) for number in range(len(parts))]
        folders.update(dict.fromkeys(folder for folder in above if not inside.has_folder(folder)))
    return sorted(entries, key=lambda entry: (entry.before is not None, entry.path == script)), list(folders)


def _write(inside: Confined, journal: Journal, contents: dict[str, bytes]) -> None:
    changed = [entry for entry in journal.entries if entry.is_changed]
    inside.make_folder(FOLDER)
    if inside.state(IGNORE) is None:
        inside.create(IGNORE, b"*\n", NEW_FILE)
    inside.make_folder(ORIGINALS)
    for entry in changed:
        found = inside.read(entry.path) if entry.before else None
        if found is not None:
            keep_original(inside, found[0])
    inside.sync(ORIGINALS)
    try:
        save(inside, journal)
        for number, entry in enumerate(changed):
            like = entry.path if entry.before else None
            inside.create(f"{FOLDER}/new-{number}", contents[entry.path], stat.S_IMODE(entry.after.mode), like)
        for folder in journal.folders:
            inside.make_folder(folder)
        for number, entry in enumerate(changed):
            inside.rename(f"{FOLDER}/new-{number}", entry.path)
        for folder in {entry.path.rpartition("/")[0] for entry in changed}:
            inside.sync(folder)
        journal.state = COMPLETE
        save(inside, journal)
    except BaseException:
        take_back(inside, journal, [])
        raise
