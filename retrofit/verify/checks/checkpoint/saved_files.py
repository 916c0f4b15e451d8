"""The files that a run saves, by their names and the optimizer steps that were made before."""

from __future__ import annotations

from pathlib import PurePath

from retrofit.verify.checks.output.single_writer import is_temporary
from retrofit.verify.evidence import RankTrace
from retrofit.verify.trace.events import FileSave

Place = tuple[str, int]  # a name, and the optimizer steps that were made before


def saves(rank: RankTrace, done: int) -> dict[Place, FileSave]:
    """Return the last content of each file by its name and the steps since `done`, at least one."""
    return {
        (PurePath(event.path).name, event.step - done): event
        for event in rank.of(FileSave)
        if event.step > done and not is_temporary(event.path)
    }
