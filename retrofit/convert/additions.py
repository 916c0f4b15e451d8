"""The files that a conversion adds: the runtime, two scripts, a debug configuration, a page."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from retrofit.project.start import Start
from retrofit.rules.finding import Finding

from .confined import Confined, WriteError
from .guide import NAME, guide, undo_command
from .journal import LAUNCH, Journal
from .launch_scripts import launch_scripts

DEBUG = "Debug DDP Training"
KIT = Path(__file__).resolve().parents[1]

COMMAND = '''\
"""`python -m retrofit` next to a converted script is the installed kit; this copy of it holds the runtime alone."""

import os
import sys


def main():
    files = (__file__, sys.modules["retrofit"].__file__)  # the package may be one that leads here
    here = [os.path.dirname(os.path.dirname(os.path.realpath(file))) for file in files]
    sys.path[:] = [folder for folder in sys.path if os.path.realpath(folder) not in here]
    for name in [name for name in sys.modules if name.partition(".")[0] == "retrofit"]:
        del sys.modules[name]
    try:
        from retrofit.__main__ import main as installed
    except ImportError:  # also of another project named retrofit
        sys.exit(
            f"the kit torch-retrofit is not installed for {sys.executable}, only its runtime is in this folder; run "
            "`pip install CLONE`, where CLONE is the path of the kit's clone, or git+ and its URL"
        )
    return installed()


if __name__ == "__main__":
    sys.exit(main())
'''


REDIRECT = '''\
"""The runtime of the scripts that `retrofit convert` has changed is in another folder of this project."""

import os

__path__ = [os.path.join(os.path.dirname(os.path.abspath(__file__)), *{parts!r})]
'''


def additions(
    start: Start,
    vendor: bool,
    texts: Iterable[str] = (),
    not_read: Sequence[str] = (),
    listed: Sequence[Finding] = (),
    steps: str = "",
) -> dict[Path, bytes]:
    """Return the files that are put next to the user's, by their path, for a script that is started as `start` says.

    `texts` are those of the project's modules; `vendor`: the runtime is copied. A file there that is not of an earlier
    conversion of this script keeps its name: another conversion's, say. `not_read`, `listed`, `steps`: see
    `guide`.
    """
    root, path = start.root, os.path.relpath(start.entry, start.root)
    page = guide(start, vendor, not_read, listed, steps)
    usual = {**launch_scripts(start, runtime_folder(start) if vendor else None, texts), root / NAME: os.fsencode(page)}
    ending = f'{shlex.join(start.words)} "$@"\n'
    marks = {name.name: f"`{undo_command(path)}`" if name.name == NAME else ending for name in usual}
    names = {name: _free_name(root, name, path, mark) for name, mark in marks.items()}
    merged, debug_name = merge_launch(_launch_file(root), path, False, start.module, start.folders)
    files = {}
    for place, data in usual.items():
        for name, other in {**names, DEBUG: debug_name}.items():
            data = data.replace(os.fsencode(name), os.fsencode(other))
        files[root / names[place.name]] = data
    if merged is not None:
        files[root / LAUNCH] = merged
    if vendor:
        files.update(runtime_files(runtime_folder(start)))
        files.update(_redirect(start))
    return files


def runtime_folder(start: Start) -> Path:
    """Return the folder that Python searches first: that of a script, or the one in which a module is started."""
    return start.root if start.module else start.entry.parent


def _redirect(start: Start) -> dict[Path, bytes]:
    """Return the package that leads to the runtime for the other way to start a script, where both are possible."""
    here = start.entry.parent if start.module else start.root
    if not start.is_guessed or here == runtime_folder(start):
        return {}
    parts = os.path.relpath(runtime_folder(start) / "retrofit", here / "retrofit").split(os.sep)
    path, text = here / "retrofit" / "__init__.py", REDIRECT.format(parts=parts).encode()
    with Confined(start.root) as inside:
        name = inside.relative(path)
        found = inside.read(name) if inside.has_folder(os.path.dirname(name)) else None
        is_free = found is None and not inside.names(os.path.dirname(name))
    return {path: text} if is_free or (found is not None and found[0] == text) else {}


def _free_name(root: Path, usual: str, script: str, mark: str) -> str:
    """Return `usual`, or a name made from that of the script where another file has it, one without the `mark`."""
    stem, suffix = os.path.splitext(usual)
    of_script = re.sub(r"\W+", "_", os.path.splitext(script)[0]).strip("_")
    special = f"{of_script}_{stem.rpartition('_')[2]}" if suffix == ".sh" else f"{stem}_{of_script}"
    with Confined(root) as inside:
        for name in (f"{stem}{suffix}", *(f"{special}{number}{suffix}" for number in ("", *range(2, 100)))):
            found = inside.read(name)
            if found is None or os.fsencode(mark) in found[0]:
                return name
    raise WriteError(f"{root} is full of files like {usual}; move them away")


def _launch_file(root: Path) -> bytes:
    """Return what VS Code's launch.json says, `{}` where it is a link or anything else that we leave alone."""
    with Confined(root) as inside:
        try:
            found = inside.read(LAUNCH)
        except WriteError:
            return b"{}"
    return found[0] if found else b""


def again(path: str, before: bytes | None, journal: Journal, like: bytes | None = None) -> bytes | None:
    """Return what a conversion makes of a file that is made for all scripts; None: it leaves it alone."""
    if path != LAUNCH:
        return None
    is_special = like is not None and json.dumps(_special_name(journal.script)).encode() in like
    return merge_launch(before or b"", journal.script, is_special, journal.module, journal.search_path)[0]


def runtime_files(folder: Path) -> dict[Path, bytes]:
    """Return the copy of the runtime that goes beside a script: what it needs to train, no more."""
    runtime = KIT / "distributed"
    target = folder / "retrofit"
    paths = (path.relative_to(runtime) for path in sorted(runtime.rglob("*.py")))
    files = {target / "distributed" / path: (runtime / path).read_bytes() for path in paths}
    files[target / "__init__.py"] = (KIT / "__init__.py").read_bytes()
    files[target / "__main__.py"] = COMMAND.encode()
    return files


def merge_launch(
    data: bytes, script: str, is_special: bool = False, module: str | None = None, folders: Sequence[str] = ()
) -> tuple[bytes | None, str]:
    """Return launch.json with a debug configuration for the distributed script, and the name of that.

    None in place of the file where it cannot be merged. One with comments is left alone: writing it again would lose
    them.
    """
    try:
        text = data.decode()
        content: dict[str, Any] = json.loads(text) if text.strip() else {"version": "0.2.0", "configurations": []}
        configurations: list[Any] = content["configurations"]
        if not isinstance(configurations, list):
            return None, DEBUG
        known = {entry["name"]: entry for entry in configurations if isinstance(entry, dict) and "name" in entry}
    except (ValueError, KeyError, TypeError, RecursionError):
        return None, DEBUG
    added = _debug_configuration(script, module, folders)
    before = known.get(DEBUG, added)
    if is_special or any(before.get(key) != added.get(key) for key in ("program", "module")):
        added["name"] = _special_name(script)
    if added["name"] in known:
        return data, added["name"]
    configurations.append(added)
    return os.fsencode(json.dumps(content, indent=4) + "\n"), added["name"]


def _special_name(script: str) -> str:
    return f"{DEBUG} ({script})"


def _debug_configuration(script: str, module: str | None = None, folders: Sequence[str] = ()) -> dict[str, Any]:
    """Return the debug configuration of a script; see `Start` for `module`, and `folders` of PYTHONPATH."""
    place = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "localhost", "MASTER_PORT": "12355"}
    path = os.pathsep.join(os.path.normpath(f"${{workspaceFolder}}/{folder}") for folder in folders)
    return {
        "name": DEBUG,
        "type": "debugpy",
        "request": "launch",
        **({"module": module} if module else {"program": "${workspaceFolder}/" + script}),
        "args": [],
        "env": {**place, "RETROFIT_DISTRIBUTED": "1", **({"PYTHONPATH": path} if path else {})},
        "cwd": "${workspaceFolder}",
        "console": "integratedTerminal",
        "justMyCode": False,
    }
