"""Events of what a process puts out and reads: lines, scalars, files, metrics."""

from __future__ import annotations

from dataclasses import dataclass, field

from .event import Event, Keys, Values


@dataclass(frozen=True)
class OutputLine(Event):
    """A whole line that is not blank and not of a progress bar."""

    text: str  # 500 characters at most
    stream: str  # "stdout" or "stderr"
    where: str | None = None  # the line of the script that prints it: "train.py:12 in main"


@dataclass(frozen=True)
class LoggedScalar(Event):
    """A number is logged with TensorBoard or wandb."""

    name: str  # tag, or the keys of a wandb dict joined with "/"
    value: float  # as the script gives it
    axis: int | None  # the step that the script gives; None where it gives none
    where: str | None = None  # the line of the script that logs it


@dataclass(frozen=True)
class FileChange(Event):
    """A file or folder is about to be written, made, renamed or removed."""

    op: str  # "write", "mkdir", "rename" or "remove"
    path: str  # relative to the project, absolute outside it
    source: str | None = None  # of a rename; None also where the source has no name in the trace


@dataclass(frozen=True)
class FileSave(Event):
    """torch.save has written a file, or one that it wrote was renamed."""

    path: str  # as in FileChange
    keys: Keys  # what is in it
    values: Values = field(default_factory=dict)  # by the same names; a random state is one entry


@dataclass(frozen=True)
class FileLoad(Event):
    """torch.load is about to read a file."""

    path: str | None  # as in FileChange; None for one without a name in the trace
    has_map_location: bool  # it was given and is not None
    is_own: bool  # in the run's copy of the project, and not a link to a file of the user's
    by_script: bool = True  # called in a file of the project, not in that of a library


@dataclass(frozen=True)
class FileRead(Event):
    """A file of the project that was written lately is opened to be read."""

    path: str  # as in FileChange
    where: str | None  # the line of the script
    waited: bool  # the process has slept or locked a file before: it may wait for the file by itself


@dataclass(frozen=True)
class FileLock(Event):
    """A file is locked, as one that holds nothing and is there to be locked is."""

    path: str  # as in FileChange
    is_empty: bool  # when it is locked


@dataclass(frozen=True)
class MetricRows(Event):
    """A library has gathered rows of all ranks for a metric, without those that fill up the last batch."""

    rows: int  # that are left


@dataclass(frozen=True)
class RowsCut(Event):
    """The script takes the first rows of a tensor while it evaluates, outside its model. 500 per process at most."""

    rows: int  # of the tensor
    kept: int  # of these
