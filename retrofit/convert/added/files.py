"""The files that a conversion adds: the runtime, two scripts, a debug configuration, a page."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

from retrofit.analysis.files.runtime_names import FILE_MARK, FILE_NAME, begins_as_runtime
from retrofit.analysis.files.start import Start
from retrofit.rules.finding import Finding

from ..writing.confined import Confined, WriteError
from ..writing.journal import LAUNCH, Journal
from .guide import NAME, guide, undo_command
from .launch_scripts import launch_scripts
from .runtime_file import features_of, is_changed, runtime_text, version
from .script_facts import ScriptFacts

DEBUG = "Debug DDP Training"

REDIRECT = '''\
"""{mark}, where `python -m` looks for them: see {file}."""

import importlib.util
import os
import sys

_path = os.path.join(os.path.dirname(os.path.abspath(__file__)), *{parts!r})
_spec = importlib.util.spec_from_file_location(__name__, _path)
sys.modules[__name__] = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(sys.modules[__name__])
'''


def additions(
    start: Start,
    vendor: bool,
    texts: Iterable[str] = (),
    not_read: Sequence[str] = (),
    listed: Sequence[Finding] = (),
    steps: str = "",
    facts: ScriptFacts | None = None,
    features: Collection[str] = (),
) -> dict[Path, bytes]:
    """Return the files that are put next to the user's, by their path, for a script that is started as `start` says.

    `texts` are those of the project's modules; `vendor`: the runtime file is among them, with `features`
    and those that it has. A file there that is not of
    an earlier conversion of this script keeps its name: another conversion's, say. The others: see `guide`. Raises
    WriteError where the runtime's name is taken.
    """
    root, path = start.root, os.path.relpath(start.entry, start.root)
    page = guide(start, vendor, not_read, listed, steps, facts, features)
    usual = {**launch_scripts(start, start.first_folder if vendor else None, texts), root / NAME: os.fsencode(page)}
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
        files.update(_runtime(start, features))
    return files


def _runtime(start: Start, features: Collection[str]) -> dict[Path, bytes]:
    """Return the runtime file next to a script, and what leads to it from where the other way to start would look.

    Raises WriteError where another file has the name. One that was changed by hand stays as it is.
    """
    folder, files = start.first_folder, dict[Path, bytes]()
    other = start.entry.parent if start.module else start.root
    if start.is_guessed and other != folder:
        parts = os.path.relpath(folder / FILE_NAME, other).split(os.sep)
        text = REDIRECT.format(mark=FILE_MARK, file="/".join(parts), parts=parts)
        files[other / FILE_NAME] = text.encode()
    files[folder / FILE_NAME] = runtime_text(features)
    with Confined(start.root) as inside:
        for path in files:
            found = inside.read(inside.relative(path))
            if found and features_of(found[0]) - set(features):
                files[path] = runtime_text({*features, *features_of(found[0])})
            if found and not begins_as_runtime(found[0]):
                raise WriteError(
                    f"{path} is not of retrofit, and the runtime needs this name; rename it, or add --no-vendor"
                )
            if found and version(found[0]) and is_changed(found[0]):
                files[path] = found[0]
    return files


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
