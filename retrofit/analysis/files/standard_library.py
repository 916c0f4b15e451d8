"""The names of the standard library's modules."""

from __future__ import annotations

import os
import sys
from functools import lru_cache


@lru_cache(maxsize=1)
def standard_modules() -> frozenset[str]:
    """Return the names of the modules that come with Python; the list of Python 3.10, else what is installed."""
    listed = getattr(sys, "stdlib_module_names", None)
    if listed:
        return frozenset(listed)
    folder = os.path.dirname(os.__file__)
    names = [*os.listdir(folder), *os.listdir(os.path.join(folder, "lib-dynload"))]
    return frozenset([*sys.builtin_module_names, *(name.partition(".")[0] for name in names)]) - {"site-packages"}
