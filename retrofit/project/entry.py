"""Which script of a folder trains: the one that is started, not the modules that it imports."""

from __future__ import annotations

from pathlib import Path

from . import Project, read_project
from .source import SourceError

MOST_FILES = 200


def find_entry(place: Path) -> Path:
    """Return `place` if it is a file, else the script in that folder that trains.

    Raises ValueError where there is none, or where there are several, whose names are in the message.
    """
    if place.is_file():
        return place
    if not place.is_dir():
        raise ValueError(f"no script at {place}; give the script that trains, or the folder that holds it")
    paths = sorted(place.glob("*.py"))
    if len(paths) > MOST_FILES:
        raise ValueError(f"{place} holds {len(paths)} Python files; give the script that trains")
    projects = [project for path in paths if (project := _read(path)) is not None]
    imported = {source.path for project in projects for source in project.sources if source is not project.entry}
    training = [project.entry for project in projects if project.paths and project.entry.path not in imported]
    if len(training) == 1:
        return place / training[0].path.name
    names = ", ".join(str(place / source.path.name) for source in training)
    if names:
        raise ValueError(f"several scripts in {place} train; give one of: {names}")
    raise ValueError(f"no script in {place} has a training loop (backward in a loop); give the script that trains")


def _read(path: Path) -> Project | None:
    try:
        return read_project(path)
    except SourceError:
        return None
