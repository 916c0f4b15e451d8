"""The line of the script that is being run, for what it gives out."""

from __future__ import annotations

import os
import sys
from functools import lru_cache
from typing import Any

from retrofit.verify.trace.runtime import is_in_runtime


def place_of_caller(project: str) -> str | None:
    """Return the innermost line of the user's own files that is run, as "train.py:12 in main"; None without one."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        path = _own_path(frame.f_code.co_filename, project)
        if path is not None:
            return f"{path}:{frame.f_lineno} in {frame.f_code.co_name}"
        frame = frame.f_back
    return None


@lru_cache(maxsize=1000)
def _own_path(file: str, project: str) -> str | None:
    """Return the path of a file in the project, None for one outside, of an environment or of the runtime."""
    if not file.startswith(os.path.join(project, "")):
        return None
    path = os.path.relpath(file, project)
    return None if "site-packages" in path or is_in_runtime(path, project) else path
