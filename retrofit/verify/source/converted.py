"""Scripts that `retrofit convert` has written: on one process they do what they did before."""

from __future__ import annotations

from pathlib import Path

from retrofit.verify.trace.runtime import defines_mark


def is_converted(script: Path, project: Path) -> bool:
    """Return whether the file with the runtime, as a conversion adds it, is next to the script or in the project."""
    files = [path for folder in dict.fromkeys((script.parent, project)) for path in sorted(folder.glob("*.py"))]
    return any(defines_mark(str(path)) for path in files)
