"""The code that distributes a script: the runtime, torch itself, Accelerate or Lightning Fabric."""

from __future__ import annotations

import re
from pathlib import Path

from retrofit.verify.trace.runtime import PACKAGE, defines_mark

from .files import python_files

RUNTIME, TORCH, ACCELERATE, FABRIC = "", "torch", "accelerate", "fabric"
# The first that a file imports. A script without any is not distributed yet, and `retrofit convert` writes the runtime.
SIGNS = (
    (RUNTIME, re.compile(rf"^\s*(import|from)\s+{re.escape(PACKAGE)}\b", re.MULTILINE)),
    (ACCELERATE, re.compile(r"^\s*(import|from)\s+accelerate\b", re.MULTILINE)),
    (FABRIC, re.compile(r"^\s*(import|from)\s+(lightning[._]fabric|lightning\b.*\bFabric)", re.MULTILINE)),
    (FABRIC, re.compile(r"^\s*import\s+lightning\b[\s\S]*\.Fabric\(", re.MULTILINE)),
    (TORCH, re.compile(r"\btorch\.(nn\.parallel|distributed)\b|DistributedDataParallel")),
)


def is_converted(script: Path, project: Path) -> bool:
    """Return whether `retrofit convert` has written a script: the runtime file is next to it, or in the project.

    On one process such a script does what it did before.
    """
    files = [path for folder in dict.fromkeys((script.parent, project)) for path in sorted(folder.glob("*.py"))]
    return any(defines_mark(str(path)) for path in files)


def uses_runtime(project: Path) -> bool:
    """Return whether a project has a runtime, in one file or as the installed package."""
    files = [path for paths in python_files(project).values() for path in paths if path.is_file()]
    return any(defines_mark(str(path)) or PACKAGE.encode() in path.read_bytes() for path in files)


def dialect_of(script: Path, project: Path) -> str:
    """Return in which words a script is distributed: by its imports, and those of the files next to it."""
    if is_converted(script, project):
        return RUNTIME
    text = sources_of(script)
    return next((dialect for dialect, sign in SIGNS if sign.search(text)), RUNTIME)


def sources_of(script: Path) -> str:
    """Return the text of a script, and of the files next to it."""
    sources = [script, *sorted(script.parent.glob("*.py"))]
    return "\n".join(path.read_text(encoding="utf-8", errors="replace") for path in sources if path.is_file())
