"""Paths that a rank may write: temporary ones, and those that carry its number."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterable
from pathlib import PurePath

TEMPORARY = re.compile(
    r"(^|/)(__pycache__|\.cache|\.triton|\.nv|\.git|torchinductor_[^/]*|tmp[a-z0-9_]{8}|proc|dev)(/|$)|"
    r"\.(pyc|lock|tmp|part)$|\.tmp[.\d]|~$",
    re.IGNORECASE,
)


def is_temporary(path: str) -> bool:
    temporary = (tempfile.gettempdir() + "/", "/tmp/", "/var/tmp/", "/dev/", "/proc/")
    return path.startswith(temporary) or bool(TEMPORARY.search(path))


def names_rank(path: str, rank: int) -> bool:
    """Return whether the last parts of a path carry the rank: rank1, _r1, .1., gpu1."""
    parts = "/".join(PurePath(path).parts[-2:])
    words = rf"(rank|proc(ess)?|gpu|worker|local|[._\-/]r)[_\-=]?0*{rank}(?!\d)"
    return bool(re.search(rf"{words}|\.{rank}(\.|$)", parts, re.IGNORECASE))


def is_part_of_rank(path: str, rank: int, of_main: Iterable[str]) -> bool:
    """Return whether rank 0 wrote the same file with a 0 in place of a number, its rank: `state_1.bin`, `__1_0.distcp`.

    A checkpoint may have a part for each rank: its random state, or its shard. A number in a folder's name may be a
    second of the time instead.
    """
    others, name = set(of_main), PurePath(path).name
    for found in re.finditer(r"\d+", name):
        zero = "0" * len(found.group())
        main_name = name[: found.start()] + zero + name[found.end() :]
        if int(found.group()) == rank and str(PurePath(path).with_name(main_name)) in others:
            return True
    return False
