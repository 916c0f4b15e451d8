"""Check of free space on the disks that a training writes to."""

from __future__ import annotations

import os
from pathlib import Path

from retrofit.doctor.finding import FAIL, GIB, OK, WARN, Finding, size

FEW_FILES = 1000


def check_disk(name: str, folder: Path) -> Finding:
    """Check whether checkpoints and temporary files find room in `folder`, and may be written there."""
    space = os.statvfs(folder)
    free = space.f_frsize * space.f_bavail
    value = f"{folder}: {size(free)} free of {size(space.f_frsize * space.f_blocks)}"
    if not os.access(folder, os.W_OK):
        return Finding(name, FAIL, f"{folder} may not be written to", "choose another folder, or chown it")
    if space.f_files and space.f_favail < FEW_FILES:
        return Finding(name, FAIL, f"{value}, room for {space.f_favail} more files", "delete small files (df -i)")
    remedy = "make room, or write elsewhere (temporary files: export TMPDIR=/big/disk)"
    if free < GIB:
        return Finding(name, FAIL, value, remedy)
    if free < 10 * GIB:
        return Finding(name, WARN, f"{value}; checkpoints of a few GiB each fill that soon", remedy)
    return Finding(name, OK, value)
