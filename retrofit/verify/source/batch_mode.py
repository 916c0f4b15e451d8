"""The batch mode in which a script is compared, and the one in which its user starts it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from .distribution import uses_runtime

TWIN = "RETROFIT_BATCH"
GLOBAL = {TWIN: "global"}  # distribute_loader then keeps the global batch of one process at N
FEW_STEPS = 10  # of the run in the user's mode, where the others take all steps


def keeps_batch(batch_flag: str | None, nproc: int, project: Path, arguments: Sequence[str], environ: Mapping) -> str:
    """Return what keeps the global batch in the compared runs; "" where the user's own start keeps it, too."""
    if batch_flag:
        return f"with {batch_flag.lstrip('-')} divided by {nproc}"
    if _asks_for_global(arguments, environ) or not uses_runtime(project):
        return ""
    return f"with the global batch kept ({TWIN}=global)"


def steps_of_user_mode(steps: int) -> int:
    """Return the number of steps of the run in the user's mode: its losses are others, and compared with nothing."""
    return max(2, steps // 2) if steps else FEW_STEPS


def _asks_for_global(arguments: Sequence[str], environ: Mapping[str, str]) -> bool:
    if {**os.environ, **environ}.get(TWIN) == "global":
        return True
    flags = [*zip(arguments, arguments[1:]), *(tuple(one.split("=", 1)) for one in arguments if "=" in one)]
    return any(name.startswith("--") and "batch" in name and value == "global" for name, value in flags)
