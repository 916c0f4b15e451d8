"""`retrofit convert --update-runtime`: the runtime file of this kit in the place of an older one."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from pathlib import Path

from retrofit import __version__
from retrofit.analysis.files.runtime_names import FILE_NAME

from ..writing.confined import NEW_FILE, Confined, State, WriteError, digest
from ..writing.journal import FOLDER, read_journals, save
from .runtime_file import features_of, is_changed, runtime_text, version


def runtime_places(folders: Sequence[Path], script: Path | None) -> list[Path]:
    """Return the runtime files of the conversions in `folders`, or next to a script. Raises WriteError for none."""
    places = dict.fromkeys(folder / FILE_NAME for folder in [*([script.parent] if script else []), *folders])
    for root in folders:
        with Confined(root) as inside:
            entries = [entry.path for journal in read_journals(inside) for entry in journal.entries]
        places.update(dict.fromkeys(root / path for path in entries if os.path.basename(path) == FILE_NAME))
    found = [path for path in places if path.is_file() and version(path.read_bytes())]
    if not found:
        raise WriteError(f"no {FILE_NAME} of retrofit in {folders[0]}; `retrofit convert SCRIPT --write` writes one")
    return found


def update(path: Path, force: bool, features: Collection[str] = ()) -> str:
    """Write this kit's runtime file to `path` in one step; return what was done.

    It has these features, and those that the older one has. The conversions that know of the file can be undone as
    before, also where an earlier update was killed before it had told them. Raises WriteError for a file that was
    changed by hand, without `force`; with it the changed one is kept next to it.
    """
    root = next((folder for folder in path.parents if (folder / FOLDER).is_dir()), path.parent)
    with Confined(root) as inside:
        inside.lock()
        name = inside.relative(path)
        before = inside.read(name)
        if before is None:
            raise WriteError(f"{path} is gone; `retrofit convert SCRIPT --write` writes it")
        wanted = {*features, *features_of(before[0])}
        data = runtime_text(wanted)
        done = f"{path} is that of this kit, {__version__}, already"
        if before[0] != data:
            done = (
                f"{path}: {version(before[0])} -> {__version__}{' with ' + ', '.join(sorted(wanted)) if wanted else ''}"
            )
            if is_changed(before[0]):
                done += f", the changed one is {_set_aside(inside, name, before[0], force)}"
            _put(inside, name, data)
        _tell_journals(inside, name, digest(data))
    return done


def _set_aside(inside: Confined, name: str, data: bytes, force: bool) -> Path:
    """Keep a file that was changed by hand next to the new one, and return its path. Raises WriteError."""
    if not force:
        changed = inside.root / name
        raise WriteError(f"{changed} was changed by hand; --force writes over it and keeps it as {FILE_NAME}.old")
    _put(inside, f"{name}.old", data)
    return inside.root / f"{name}.old"


def _tell_journals(inside: Confined, name: str, sha256: str) -> None:
    """Note the new content in the journals of the conversions that wrote the file, or need it."""
    for journal in read_journals(inside):
        entry = journal.entry(name)
        if entry is not None and entry.after.sha256 != sha256:
            state = State(sha256, entry.after.mode)
            entry.before, entry.after = entry.before if entry.is_changed else state, state
            save(inside, journal)


def _put(inside: Confined, name: str, data: bytes) -> None:
    temporary = f"{name}.new"
    inside.remove(temporary)
    inside.create(temporary, data, NEW_FILE)
    inside.rename(temporary, name)
