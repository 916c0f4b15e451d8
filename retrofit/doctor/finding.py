"""The result of one check: what was seen, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass

OK, WARN, FAIL, SKIP = "OK", "WARN", "FAIL", "SKIP"
STATUSES = (OK, WARN, FAIL, SKIP)

MIB = 2**20
GIB = 2**30


@dataclass(frozen=True)
class Finding:
    """The outcome of one check.

    FAIL: the training will not start, or will end with an error. WARN: it can be slow, or fail later.
    SKIP: this machine does not report it, or has nothing to check; `value` says which.
    """

    name: str
    status: str
    value: str  # what was seen
    remedy: str = ""  # what to do: a command or a setting; only WARN and FAIL have one

    def __post_init__(self) -> None:
        assert self.status in STATUSES, self
        assert bool(self.remedy) == (self.status in (WARN, FAIL)), self


@dataclass(frozen=True)
class Plan:
    """The training that the checks are for."""

    ranks: int = 2  # processes on this machine
    workers: int = 4  # DataLoader workers of each
    nnodes: int = 1  # machines

    def __str__(self) -> str:
        nodes = f"{self.nnodes} machines" if self.nnodes > 1 else "one machine"
        return f"{counted(self.ranks, 'process', 'processes')} with {self.workers} workers each, on {nodes}"


def counted(number: int, one: str, many: str = "") -> str:
    """Return `1 GPU`, `2 GPUs`."""
    return f"{number} {one if number == 1 else many or one + 's'}"


def size(num_bytes: float) -> str:
    """Return a size in readable units: `64 MiB`, `1.5 GiB`."""
    for unit in ("B", "KiB", "MiB"):
        if abs(num_bytes) < 1024:
            return f"{num_bytes:.0f} {unit}"
        num_bytes /= 1024
    return f"{num_bytes:.1f} GiB".replace(".0 GiB", " GiB")
