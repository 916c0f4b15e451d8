"""The script of a folder that trains: the one that is started, not the modules that it imports."""

from __future__ import annotations

import os
from pathlib import Path

from retrofit.analysis.files.notebook import export, is_notebook, script_of
from retrofit.analysis.files.runtime_names import FILE_MODULE, is_runtime_file
from retrofit.analysis.files.source import SourceError
from retrofit.analysis.files.start import Start, read_module, read_script

from .. import Project, read_project

MOST_FILES = 200


def open_project(
    place: str, module: str | None = None, root: str | None = None, runtime: str = FILE_MODULE
) -> tuple[Project, Start]:
    """Return the project of the script at `place`, or of `module`, and how it is started; `root`: in which folder.

    `runtime`: see `Project`.
    Raises ValueError where no script is found, SourceError when it cannot be read.
    """
    folder = Path(root) if root else None
    if module and place != os.curdir:
        raise ValueError(f"both {place} and -m {module}; give one of them")
    if module:
        modules, start = read_module(module, folder)
    else:
        entry = find_entry(Path(place))
        texts = {Path(os.path.realpath(script_of(entry))): export(entry).text.encode()} if is_notebook(entry) else {}
        modules, start = read_script(script_of(entry), folder, texts)
    return Project(modules, runtime), start


def find_entry(place: Path) -> Path:
    """Return `place` if it is a file, else the script in that folder that trains.

    Raises ValueError where there is none, or where there are several, whose names are in the message.
    """
    if place.is_file():
        return place
    if not place.is_dir():
        raise ValueError(f"no script at {place}; give the script that trains, or the folder that holds it")
    paths = sorted(path for path in place.glob("*.py") if not is_runtime_file(path))
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
