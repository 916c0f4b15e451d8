"""Imports of local modules that are not found: what they lead to is not read, so the user has to say where it is."""

from __future__ import annotations

import importlib.machinery
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from retrofit.packages import import_path

from .modules import Import, Modules
from .repository import common_folder, folders_in, may_hold, tree_of
from .runtime_names import RUNTIME
from .shell_paths import folders_of_shell_scripts
from .source import Place, printable

REMEDY = f"`import {RUNTIME} as rd`, and rd.setup_distributed, rd.model.unwrap_model: docs/api.md lists all names"


def missing_modules(modules: Modules) -> list[str]:
    """Return a line for each import of a module that is not found although the project seems to hold it."""
    wanted = [one for one in modules.unresolved if not one.is_optional]
    absolute = {one.dotted for one in wanted if not one.level} - _installed({one.dotted for one in wanted})
    places = _places(modules, absolute) if absolute else {}
    lines = []
    for one in wanted:
        if not one.level and one.dotted.startswith(f"{RUNTIME}."):
            lines.append(f"{_place(one)}: `{_text(one)}` finds no module; write {REMEDY}")
        elif one.level or one.dotted in places or _is_of_package(modules, one):
            lines.append(f"{_place(one)}: {_line(modules, one, places.get(one.dotted, []))}")
    return lines + _beyond_package(modules) + (_set_by_scripts(modules) if lines else [])


def _set_by_scripts(modules: Modules) -> list[str]:
    """Return a line with the folders that a shell script of the project puts into PYTHONPATH."""
    found = folders_of_shell_scripts(modules.entry.path.parent)
    if found is None:
        return []
    script, folders = found
    path = os.pathsep.join(printable(os.path.relpath(folder)) for folder in folders)
    root = printable(os.path.relpath(os.path.commonpath([modules.entry.path.parent, *folders])))
    name = printable(os.path.relpath(script))
    return [f"{name} sets PYTHONPATH; do so here, too: PYTHONPATH={path}, with --root {root}"]


def _line(modules: Modules, one: Import, found: list[Path]) -> str:
    text, entry = _text(one), modules.entry.path
    if not found:
        hint = "is it a git submodule that is not here, or in another folder, which --root has to name?"
        return f"`{text}` finds no module, so it is not read; {hint}"
    above = [base for base in found if base in entry.parents]
    place = printable(os.path.relpath((above or found)[0], modules.root))
    if above:
        root = printable(os.path.relpath(above[0]))  # as it is typed
        return f"`{text}` is not read: {one.dotted} is in {root}; start there, that is --root {root}"
    root = printable(os.path.relpath(common_folder(found[0], entry.parent), modules.root))
    return (
        f"`{text}` is not read: {one.dotted} is in {place}, which Python does not search; set PYTHONPATH={place}, "
        f"with --root {root}"
    )


def _text(one: Import) -> str:
    return " ".join(one.source.segment(one.node).split())


def _is_of_package(modules: Modules, one: Import) -> bool:
    """Return whether a module that is not found is named as one in a package of the project."""
    package = one.dotted.rpartition(".")[0]
    return bool(package) and modules.find(package, 0, one.source) is not None


def _beyond_package(modules: Modules) -> list[str]:
    """Return a line where the script is part of a package, and is not started so."""
    own = [one for one in modules.relative if one.source is modules.entry and not one.is_optional]
    if not own or modules.as_module:
        return []
    place = printable(os.path.relpath(modules.entry.path.parents[own[0].level], modules.root))
    text = "a relative import of the script works with `python -m` alone"
    return [f"{_place(own[0])}: {text}; name with --root the folder that this starts in: --root {place}"]


def _place(one: Import) -> str:
    place: Place = one.source.place(one.node)
    return f"{printable(place.path)}:{place.line}"


def _installed(names: set[str]) -> set[str]:
    """Return those of the modules whose package this Python has; nothing of it is imported."""
    here = os.path.realpath(os.curdir)
    folders = [folder for folder in import_path.before or sys.path if folder and os.path.realpath(folder) != here]
    find = importlib.machinery.PathFinder.find_spec
    tops = {top: find(top, folders) for top in {name.partition(".")[0] for name in names if name}}
    return {name for name in names if name and (spec := tops[name.partition(".")[0]]) and spec.origin}


def _places(modules: Modules, names: set[str]) -> dict[str, list[Path]]:
    """Return the folders from which a module of these names would be found, the nearest to the script first."""
    folder = modules.entry.path.parent
    found: dict[str, list[Path]] = {}
    tops = {name.partition(".")[0] for name in names}
    for base in [*modules.outside, *_folders(folder, modules.root)]:
        if not tops.isdisjoint(_modules_in(base)):
            for name in names:
                if _has(base, name):
                    found.setdefault(name, []).append(base)
    return {name: sorted(set(bases), key=lambda base: _distance(base, folder)) for name, bases in found.items()}


def _distance(base: Path, folder: Path) -> tuple[int, str]:
    path = os.path.relpath(base, folder)
    return len(path.split(os.sep)), path


def _modules_in(base: Path) -> set[str]:
    try:
        return {name.partition(".")[0] for name in os.listdir(base)}
    except OSError:
        return set()


def _has(base: Path, dotted: str) -> bool:
    place = base.joinpath(*dotted.split("."))
    if place.with_name(f"{place.name}.py").is_file():
        return True
    return place.is_dir() and any(name.endswith(".py") for name in os.listdir(place))


def _folders(folder: Path, root: Path) -> Iterator[Path]:
    """Yield the folders above a script that may belong to its project, and those of the project's tree."""
    yield from (above for above in folder.parents if may_hold(above, folder))
    yield from folders_in(common_folder(tree_of(folder), root))
