"""The runtime of the traced script: the package `retrofit.distributed`, or one file that defines RETROFIT_RUNTIME.

A converted project has a copy of its own, under a name of its own. What depends on that copy is asked here, and nowhere
else in the tracer; of the kit's own copy the tracer uses functions that have no state.
"""

from __future__ import annotations

import math
import os
import re
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

PACKAGE = "retrofit.distributed"
MARK = "RETROFIT_RUNTIME"  # its value is the version of the runtime
_PACKAGE_FOLDER = os.sep + os.path.join(*PACKAGE.split("."), "")
_DEFINES_MARK = re.compile(rb"^RETROFIT_RUNTIME\b[^=\n]*=[^=]", re.MULTILINE)


def batch_weight() -> float:
    """Return how much this rank's samples count in the batch in use, as `weight_of` of distributed/data/batch.py.

    1 without a runtime. Of several (a file that is imported under two names) those without a batch in use say 1.
    """
    return math.prod(float(weight_of()) for weight_of in loaded_functions("weight_of"))


def loaded_functions(name: str) -> list[Callable[..., Any]]:
    """Return the function `name` of each runtime that is loaded in this process, once however often it is imported."""
    found = [vars(module)[name] for module in _loaded_modules() if name in vars(module)]
    return list({id(function): function for function in found}.values())


def is_in_runtime(path: str, project: str) -> bool:
    """Return whether a source file belongs to a runtime: its lines are not the user's. `path`: within `project`."""
    return _PACKAGE_FOLDER in os.sep + path or defines_mark(os.path.join(project, path))


def _loaded_modules() -> list[ModuleType]:
    """Return the modules of all runtimes. No module's `__getattr__` is called: a lazy one would import more."""
    modules = [(name, module) for name, module in list(sys.modules.items()) if isinstance(module, ModuleType)]
    return [module for name, module in modules if f"{name}.".startswith(f"{PACKAGE}.") or MARK in vars(module)]


def defines_mark(path: str) -> bool:
    """Return whether a file is a runtime in one piece."""
    try:
        with open(path, "rb") as file:
            return bool(_DEFINES_MARK.search(file.read()))
    except OSError:
        return False
