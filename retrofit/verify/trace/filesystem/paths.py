"""Names of paths in the trace, and the paths that are not recorded."""

from __future__ import annotations

import os
import site
import sys
import sysconfig
from collections.abc import Iterable

SYSTEM = ("/dev", "/proc", "/sys")
CACHES = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "TORCH_EXTENSIONS_DIR", "CUDA_CACHE_PATH")


class Places:
    """Names paths relative to the project; those in ignored folders have no name.

    The innermost folder decides: the project may lie in an ignored folder, and ignored ones in the project.
    """

    def __init__(self, project: str, ignore: Iterable[str]) -> None:
        self._project = os.path.realpath(project)
        ignored = {os.path.realpath(folder) for folder in (*ignore, *SYSTEM, *_installations(), *_caches()) if folder}
        self._folders = sorted({self._project, *ignored}, key=len, reverse=True)

    def name(self, place: str) -> str | None:
        """Return the name of `place`, none of whose folders is a link: relative inside the project, else absolute."""
        if is_cache(place):
            return None
        for folder in self._folders:
            if place == folder or place.startswith(folder + os.sep):
                return os.path.relpath(place, folder) if folder == self._project else None
        return place


def is_cache(path: str) -> bool:
    """Return whether `path` is what Python, inductor or Triton keep for the next time."""
    parts = path.split(os.sep)
    return path.endswith(".pyc") or any(
        part in ("__pycache__", ".triton") or part.startswith("torchinductor_") for part in parts
    )


def _installations() -> list[str]:
    return [sys.prefix, sys.base_prefix, site.getusersitepackages(), *sysconfig.get_paths().values()]


def _caches() -> list[str]:
    return [os.environ.get(name, "") for name in CACHES]
