"""Full names in the runtime: a function has one name, whichever module it is reached through.

`rd.loss.sum_loss`, `from retrofit.distributed.loss import sum_loss` and `multigpu.sum_loss`, of the runtime file of
a converted script, are `retrofit.distributed.sum_loss` in every table of the analysis.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

RUNTIME, FILE_MODULE = "retrofit.distributed", "multigpu"
FILE_NAME = f"{FILE_MODULE}.py"
FILE_MARK = "The functions by which this project trains on many GPUs"  # so it begins
# The modules that `rd` has as attributes, wherever their files are. A test compares them with the runtime.
MODULES = frozenset(
    {
        "checkpoint", "collectives", "data", "devices", "environment", "evaluation", "job", "learning_rate", "loss",
        "model", "options", "output", "process_group", "random_state", "search", "strategies",
    }
)  # fmt: skip
_PREFIX = f"{RUNTIME}."
_LIBRARY = Path(__file__).resolve().parents[2] / "distributed"


def canonical(name: str) -> str:
    """Return the one full name of what `name` is, the name itself outside the runtime."""
    if name.startswith(f"{FILE_MODULE}."):
        name = _PREFIX + name[len(FILE_MODULE) + 1 :]
    if not name.startswith(_PREFIX):
        return RUNTIME if name == FILE_MODULE else name
    parts = name[len(_PREFIX) :].split(".")
    for length in range(len(parts) - 1, 0, -1):
        module = ".".join(parts[:length])
        if module in MODULES or _has_file(module):
            return ".".join([RUNTIME, *parts[length:]])
    return name


def is_module(path: str) -> bool:
    """Return whether `retrofit.distributed.<path>` can be imported."""
    return _has_file(path) or _has_file(f"{path}.__init__")


@cache
def _has_file(path: str) -> bool:
    return _LIBRARY.joinpath(*path.split(".")[:-1], f"{path.rpartition('.')[2]}.py").is_file()


def is_runtime_file(path: Path) -> bool:
    """Return whether a file is the runtime next to a converted script, which is not part of the project."""
    if path.name != FILE_NAME:
        return False
    try:
        with path.open("rb") as file:
            return begins_as_runtime(file.read(len(FILE_MARK) + 3))
    except OSError:
        return False


def begins_as_runtime(data: bytes) -> bool:
    """Return whether the bytes of a file are the runtime, or lead to it."""
    return data.startswith(b'"""' + FILE_MARK.encode())
