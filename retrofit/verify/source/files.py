"""The Python files of a project."""

from __future__ import annotations

import os
from pathlib import Path

MOST_FILES = 3000
LEFT_OUT = {"site-packages", "venv", "env", "node_modules", "build", "dist"}


def python_files(folder: Path) -> dict[str, list[Path]]:
    """Return a project's files by the names that import them."""
    found: dict[str, list[Path]] = {}
    number = 0
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name not in LEFT_OUT)
        for name in sorted(name for name in names if name.endswith(".py")):
            stem = name.removesuffix(".py") if name != "__init__.py" else os.path.basename(place)
            found.setdefault(stem, []).append(Path(place, name))
            number += 1
        if number > MOST_FILES:
            break
    return found
