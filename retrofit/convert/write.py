"""Write many files or none, and take it back."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
from pathlib import Path

FOLDER = ".retrofit"
MANIFEST = "undo.json"


class WriteError(ValueError):
    """The files could not be written; everything is as it was."""


def write_all(root: Path, files: dict[Path, bytes]) -> None:
    """Write all files, each in one step, and remember under `root` what was there before.

    Raises WriteError when one of them cannot be written; those before it are then restored.
    """
    before = {path: path.read_bytes() if path.exists() else None for path in files}
    temporary: dict[Path, Path] = {}
    made = [folder for path in files for folder in path.parents if not folder.exists()]
    had_undo = (root / FOLDER).exists()
    try:
        for path, data in files.items():
            target = Path(os.path.realpath(path))  # a link stays a link
            if target.exists() and not os.access(target, os.W_OK):
                raise PermissionError(13, "read-only", str(path))
            target.parent.mkdir(parents=True, exist_ok=True)
            temporary[target] = target.with_name(f".{target.name}.retrofit")
            temporary[target].write_bytes(data)
            if target.exists():
                shutil.copymode(target, temporary[target])
            elif target.suffix == ".sh":
                temporary[target].chmod(temporary[target].stat().st_mode | stat.S_IXUSR)
        _remember(root, before, files)
        for target, new in temporary.items():
            os.replace(new, target)
    except OSError as error:
        for new in temporary.values():
            new.unlink(missing_ok=True)
        _restore(before)
        for folder in sorted(set(made), reverse=True):  # the inner ones first
            if folder.is_dir():
                folder.rmdir()
        if not had_undo:
            shutil.rmtree(root / FOLDER, ignore_errors=True)
        raise WriteError(f"{error.filename or root}: {error.strerror}; nothing was changed") from error


def _restore(before: dict[Path, bytes | None]) -> None:
    for path, old in before.items():
        if old is None:
            path.unlink(missing_ok=True)
        elif path.read_bytes() != old:
            path.write_bytes(old)


def undo(root: Path) -> list[Path]:
    """Restore what the last `write_all` replaced, and return the paths.

    Raises WriteError when there is nothing to undo, or when a file has been changed since.
    """
    folder = root / FOLDER
    manifest = folder / MANIFEST
    if not manifest.exists():
        raise WriteError(f"no conversion to undo in {root}; use your version control")
    entries = json.loads(manifest.read_text(encoding="utf-8"))
    changed = [e["path"] for e in entries if _hash(root / e["path"]) != e["after"]]
    if changed:
        names = ", ".join(changed)
        raise WriteError(f"changed since the conversion: {names}; undo by hand, the originals are in {folder}")
    restored = []
    for entry in entries:
        path = root / entry["path"]
        if entry["before"] is None:
            path.unlink()
            _remove_empty(path.parent, root)
        else:
            path.write_bytes((folder / entry["before"]).read_bytes())
        restored.append(path)
    shutil.rmtree(folder)
    return restored


def _remember(root: Path, before: dict[Path, bytes | None], after: dict[Path, bytes]) -> None:
    folder = root / FOLDER
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    entries = []
    for number, (path, data) in enumerate(before.items()):
        name = None if data is None else f"{number:03d}_{path.name}"
        if name is not None and data is not None:
            (folder / name).write_bytes(data)
        digest = hashlib.sha256(after[path]).hexdigest()
        entries.append({"path": os.path.relpath(path, root), "before": name, "after": digest})
    (folder / MANIFEST).write_text(json.dumps(entries, indent=1), encoding="utf-8")


def _hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else ""


def _remove_empty(folder: Path, root: Path) -> None:
    while folder != root and not any(folder.iterdir()):
        folder.rmdir()
        folder = folder.parent
