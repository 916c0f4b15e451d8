"""Folders of a project that its shell scripts put into PYTHONPATH: `export PYTHONPATH=$ROOT/src/data:$PYTHONPATH`."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from pathlib import Path

from .repository import folders_in, tree_of

MOST_SCRIPTS = 200
SET = re.compile(r"^\s*(?:export\s+)?PYTHONPATH=(\S+)", re.MULTILINE)
VARIABLE = re.compile(r"\$\{?\w+\}?|\$\(.*?\)|[\"']")


def folders_of_shell_scripts(folder: Path) -> tuple[Path, list[Path]] | None:
    """Return the first shell script around a folder that names folders of the project, and these; None without one.

    What a variable holds is not known: `$SOURCES/data` is taken for data in the project, or in a folder of it.
    """
    tree = tree_of(folder)
    for script in _scripts(tree):
        try:
            text = script.read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        parts = [part for value in SET.findall(text) for part in value.split(":")]
        names = dict.fromkeys(VARIABLE.sub("", part).strip("/") for part in parts)
        named = _named(tree, [name for name in names if name and ".." not in name])
        if named:
            return script, named
    return None


def _scripts(tree: Path) -> Iterator[Path]:
    found = (path for folder in folders_in(tree) for path in sorted(folder.glob("*.sh")) if path.is_file())
    return itertools.islice(found, MOST_SCRIPTS)


def _named(tree: Path, names: list[str]) -> list[Path]:
    """Return the folders with some names, in the tree or in that one of its folders which has the most of them."""
    bases = [tree, *sorted(path for path in tree.iterdir() if path.is_dir() and not path.is_symlink())]
    found = [[base / name for name in names if (base / name).is_dir()] for base in bases]
    return max(found, key=len)
