"""What a conversion puts beside the user's files: the runtime, two scripts, a debug configuration, a page."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from retrofit.rules import Finding

from .confined import Confined, WriteError
from .guide import NAME, guide, undo_command
from .journal import LAUNCH
from .launch_scripts import launch_scripts

DEBUG = "Debug DDP Training"
KIT = Path(__file__).resolve().parents[1]

COMMAND = '''\
"""`python -m retrofit` next to a converted script is the installed kit; this copy of it holds the runtime alone."""

import os
import sys


def main():
    here = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
    sys.path[:] = [folder for folder in sys.path if os.path.realpath(folder) != here]
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


def additions(
    root: Path,
    entry: Path,
    vendor: bool,
    texts: Iterable[str] = (),
    not_read: Sequence[str] = (),
    listed: Sequence[Finding] = (),
    steps: str = "",
) -> dict[Path, bytes]:
    """Return the files that are put into `root`, by their path.

    `texts` are those of the project's modules; `vendor`: the runtime is copied. A file there that is not of an earlier
    conversion of this script keeps its name: another conversion's, say. `not_read`, `listed`, `steps`: see
    `guide`.
    """
    path = os.path.relpath(entry, root)
    script = f"./{path}" if path.startswith("-") else path  # not an option
    page = guide(path, vendor, not_read, listed, steps)
    usual = {**launch_scripts(root, entry, script, texts, vendor), root / NAME: os.fsencode(page)}
    start = f'{shlex.quote(script)} "$@"\n'
    marks = {name.name: f"`{undo_command(path)}`" if name.name == NAME else start for name in usual}
    names = {name: _free_name(root, name, path, mark) for name, mark in marks.items()}
    merged, debug_name = merge_launch(_launch_file(root), path)
    files = {}
    for place, data in usual.items():
        for name, other in {**names, DEBUG: debug_name}.items():
            data = data.replace(os.fsencode(name), os.fsencode(other))
        files[root / names[place.name]] = data
    if merged is not None:
        files[root / LAUNCH] = merged
    if vendor:
        files.update(runtime_files(entry.parent))
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


def again(path: str, before: bytes | None, script: str, like: bytes | None = None) -> bytes | None:
    """Return what the conversion of `script` makes of a file that is made for all scripts; None: it leaves it alone."""
    if path != LAUNCH:
        return None
    is_special = like is not None and json.dumps(_special_name(script)).encode() in like
    return merge_launch(before or b"", script, is_special)[0]


def runtime_files(folder: Path) -> dict[Path, bytes]:
    """Return the copy of the runtime that goes beside a script: what it needs to train, no more."""
    runtime = KIT / "distributed"
    target = folder / "retrofit"
    files = {target / "distributed" / path.name: path.read_bytes() for path in sorted(runtime.glob("*.py"))}
    files[target / "__init__.py"] = (KIT / "__init__.py").read_bytes()
    files[target / "__main__.py"] = COMMAND.encode()
    return files


def merge_launch(data: bytes, script: str, is_special: bool = False) -> tuple[bytes | None, str]:
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
    added = _debug_configuration(script)
    if is_special or known.get(DEBUG, added).get("program") != added["program"]:
        added["name"] = _special_name(script)
    if added["name"] in known:
        return data, added["name"]
    configurations.append(added)
    return os.fsencode(json.dumps(content, indent=4) + "\n"), added["name"]


def _special_name(script: str) -> str:
    return f"{DEBUG} ({script})"


def _debug_configuration(script: str) -> dict[str, Any]:
    place = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "localhost", "MASTER_PORT": "12355"}
    return {
        "name": DEBUG,
        "type": "debugpy",
        "request": "launch",
        "program": "${workspaceFolder}/" + script,
        "args": [],
        "env": {**place, "RETROFIT_DISTRIBUTED": "1"},
        "cwd": "${workspaceFolder}",
        "console": "integratedTerminal",
        "justMyCode": False,
    }
