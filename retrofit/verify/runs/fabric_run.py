"""The variables with which Lightning Fabric's own command, `fabric run`, tells a script how it was started."""

from __future__ import annotations

import re
from pathlib import Path

from retrofit.verify.source.distribution import FABRIC, dialect_of, sources_of

LAUNCHES = re.compile(r"\.launch\(")


def as_fabric_run(script: Path, project: Path, world_size: int) -> dict[str, str]:
    """Return the variables for a script with Lightning Fabric on `world_size` processes; none for another script.

    Without a number of devices Fabric takes the GPUs of the machine, and one process where there are none. A script
    without `fabric.launch()` is written for `fabric run`, and one with it must not be told that it was started so.
    """
    if dialect_of(script, project) != FABRIC:
        return {}
    by_command = not LAUNCHES.search(sources_of(script))
    return {"LT_DEVICES": str(world_size), **({"LT_CLI_USED": "1"} if by_command else {})}
