"""The folders around a script that belong to its project, by what is in them; never those above a home directory."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

MARKS = (".git", "setup.py", "pyproject.toml", "setup.cfg")  # of the top of a repository
SOURCE_FOLDER = "src"  # in which a package may lie that is installed from its repository
MOST_LEVELS = 4  # above a script, where nothing marks the top
MOST_FOLDERS = 5000
LEFT_OUT = {"node_modules", "site-packages", "dist-packages", "__pycache__", "retrofit"}


def folders_above(folder: Path) -> list[Path]:
    """Return `folder` and those above it up to the top of the repository; only `folder` where nothing marks a top."""
    found = []
    for above in _below_home(folder):
        found.append(above)
        if any(os.path.lexists(above / mark) for mark in MARKS):
            return found
    return [folder]


def source_folders(folders: Iterable[Path]) -> list[Path]:
    """Return the folders of which an installation of the project makes what is in them importable."""
    packaged = [folder for folder in folders if any((folder / name).is_file() for name in MARKS)]
    return [folder / SOURCE_FOLDER for folder in packaged if (folder / SOURCE_FOLDER).is_dir()]


def tree_of(folder: Path) -> Path:
    """Return the git work tree that a folder is in, else the top of its repository, else the folder itself."""
    git = next((above for above in _below_home(folder) if os.path.lexists(above / ".git")), None)
    return git or folders_above(folder)[-1]


def may_hold(above: Path, folder: Path) -> bool:
    """Return whether a project with a script in `folder` may reach up to `above`: nothing leaves a git work tree."""
    around = list(_below_home(folder))
    git = next((number for number, place in enumerate(around) if os.path.lexists(place / ".git")), None)
    return above in (around[: MOST_LEVELS + 1] if git is None else around[: git + 1])


def common_folder(one: Path, other: Path) -> Path:
    """Return the innermost folder that holds both, or is one of them."""
    return Path(os.path.commonpath([one, other]))


def folders_in(top: Path) -> Iterator[Path]:
    """Yield a folder and those in it, without hidden ones and installed packages; not all of very many."""
    for number, (name, inner, _) in enumerate(os.walk(top)):
        yield Path(name)
        inner[:] = sorted(entry for entry in inner if not _is_left_out(name, entry))
        if number >= MOST_FOLDERS:
            return


def _is_left_out(folder: str, name: str) -> bool:
    return name.startswith(".") or name in LEFT_OUT or os.path.exists(os.path.join(folder, name, "pyvenv.cfg"))


def _below_home(folder: Path) -> Iterator[Path]:
    """Yield a folder and those above it, without home directories and what is above these."""
    yield folder
    home = Path(os.path.realpath(os.path.expanduser("~")))
    ends = {home, *home.parents, Path("/home"), Path("/Users"), Path(folder.anchor)}
    for above in folder.parents:
        if above in ends or str(above.parent) in ("/home", "/Users"):
            return
        yield above
