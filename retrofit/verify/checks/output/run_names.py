"""Folders and files that each rank names by itself: by its clock, by chance, by what it finds in a folder."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import PurePath

from retrofit.verify.checks.finding import Finding
from retrofit.verify.evidence import RankTrace
from retrofit.verify.trace.events import FileChange, FileSave

from .paths import is_temporary, names_rank


def run_name_fault(ranks: Sequence[RankTrace]) -> Finding | None:
    """Return the first folder of another rank that takes the place of one of rank 0 under another name, if any does."""
    main = _folders(ranks[0])
    for rank in ranks[1:]:
        own = _folders(rank)
        for folder in own:
            counterpart = next((one for one in main if _is_other_name(one, folder) and one not in own), None)
            if folder not in main and counterpart is not None and not names_rank(folder, rank.rank):
                value = f"rank 0 has {counterpart}, rank {rank.rank} has {folder}"
                return Finding("each rank names the folder of the run by itself", "RF509", value=value)
    return None


def _folders(rank: RankTrace) -> dict[str, None]:
    """Return the folders of the project that a rank makes or writes to, with those around them, in order."""
    found: dict[str, None] = {}
    for event in rank.events:
        if not isinstance(event, (FileChange, FileSave)) or os.path.isabs(event.path) or is_temporary(event.path):
            continue
        path = PurePath(event.path)
        is_folder = isinstance(event, FileChange) and event.op == "mkdir"
        is_written = isinstance(event, FileSave) or event.op == "write"
        folders = [path, *path.parents] if is_folder else path.parents if is_written else []
        found.update((str(one), None) for one in folders if one.name)
    return found


def _is_other_name(one: str, other: str) -> bool:
    """Return whether two paths are next to each other, or their folders have such names themselves."""
    a, b = PurePath(one), PurePath(other)
    return a != b and a.parent == b.parent and _form(a.name) == _form(b.name)


def _form(name: str) -> tuple[str, ...]:
    """Return the parts of a name that are neither numbers nor letters of chance: of "run_0131-12" the "run"."""
    words = "".join(c if c.isalpha() else " " for c in name).split()
    return tuple(word for word in words if len(word) > 2 and not set(word.lower()) <= set("abcdef"))
