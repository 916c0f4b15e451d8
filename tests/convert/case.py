"""One legacy project: how to run it, what it writes and how to go on from that."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Case:
    name: str  # of the project's folder
    arguments: list[str]  # of a run that takes seconds on one CPU core
    entry: str = "train.py"
    checkpoint: str = ""  # glob in the project's folder of the checkpoint that the run writes ("": it writes none)
    resume: list[str] = field(default_factory=list)  # added to go on from it; "{checkpoint}" is its path
    refused: str = ""  # why the project cannot be converted correctly ("": it can)
    note: str = ""  # the one pattern that the project is about
