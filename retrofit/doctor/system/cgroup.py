"""Limits of a container or a job scheduler, read from the control groups, version 1 and 2."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

MOUNT = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")
# Version 1 writes "no limit" as a number near 2**63.
NO_LIMIT = 2**60


@dataclass(frozen=True)
class Limits:
    """The limits of this process's control groups; None: unlimited."""

    memory_bytes: int | None = None
    cpus: float | None = None
    pids: int | None = None
    num_pids: int = 0  # processes and threads in the group that sets `pids`
    oom_kills: int = 0  # processes that were killed for memory in this process's own group


def read_limits(mount: Path = MOUNT, membership: Path = MEMBERSHIP) -> Limits:
    """Return the tightest limits of this process's groups and of all groups around them."""
    try:
        groups = _groups(membership.read_text(), mount)
    except OSError:  # not Linux
        return Limits()
    memory = list(groups("memory"))
    pids = [(limit, _number(folder / "pids.current") or 0) for folder in groups("pids") if (limit := _pids(folder))]
    return Limits(
        memory_bytes=min(filter(None, map(_memory, memory)), default=None),
        cpus=min(filter(None, map(_cpus, groups("cpu"))), default=None),
        pids=min(pids)[0] if pids else None,
        num_pids=min(pids)[1] if pids else 0,
        oom_kills=_oom_kills(memory[0]) if memory else 0,
    )


def _groups(membership: str, mount: Path) -> Callable[[str], Iterator[Path]]:
    """Return a function that yields the folders of a controller, this process's own group first."""
    places: dict[str, tuple[list[Path], str]] = {}
    unified = ""
    for line in membership.splitlines():
        _, controllers, path = line.split(":", 2)
        for controller in filter(None, controllers.split(",")):
            places[controller] = ([mount / controllers, mount / controller], path)
        if not controllers:
            unified = path

    def folders(controller: str) -> Iterator[Path]:
        roots, path = places.get(controller, ([mount, mount / "unified"], unified))
        root = next((root for root in roots if root.is_dir()), mount)
        # In a container the path can be the host's, of which only the last group is mounted, as the root.
        parts = [part for part in path.split("/") if part not in ("", "..")]
        for length in range(len(parts), -1, -1):
            folder = root.joinpath(*parts[:length])
            if folder.is_dir():
                yield folder

    return folders


def _memory(folder: Path) -> int | None:
    limit = _number(folder / "memory.max") or _number(folder / "memory.limit_in_bytes")
    return limit if limit and limit < NO_LIMIT else None


def _cpus(folder: Path) -> float | None:
    words = _text(folder / "cpu.max").split()  # "200000 100000", "max 100000"
    if len(words) == 2:
        return None if words[0] == "max" else int(words[0]) / int(words[1])
    quota, period = _number(folder / "cpu.cfs_quota_us"), _number(folder / "cpu.cfs_period_us")
    return quota / period if quota and period and quota > 0 else None


def _pids(folder: Path) -> int | None:
    return _number(folder / "pids.max")


def _oom_kills(folder: Path) -> int:
    for name in ("memory.events", "memory.oom_control"):
        for line in _text(folder / name).splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0


def _number(path: Path) -> int | None:
    text = _text(path)
    return int(text) if text.lstrip("-").isdigit() else None


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
