"""The place of each figure after a checkpoint, by which that of a resumed run is found."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import Protocol, TypeVar

SAME = 1e-6  # relative, of what a resumed run computes as the other one did
REPRODUCED = 1e-4  # relative: what rounding leaves between several processes and one


class AtStep(Protocol):
    @property
    def step(self) -> int: ...


Name = TypeVar("Name", bound=Hashable)
Item = TypeVar("Item", bound=AtStep)


def by_place(items: Mapping[Name, Iterable[Item]], done: int) -> dict[tuple[Name, int, int], Item]:
    """Return what comes after `done` steps by its name, the steps since, and how many came before at that step."""
    found: dict[tuple[Name, int, int], Item] = {}
    for name, of_name in items.items():
        seen: dict[int, int] = {}
        for item in of_name:
            if item.step > done:
                seen[item.step] = seen.get(item.step, -1) + 1
                found[name, item.step - done, seen[item.step]] = item
    return found
