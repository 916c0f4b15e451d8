"""Ask git whether a folder has uncommitted changes, without running anything that the folder brings along.

A repository's own configuration may name programs that git starts (core.fsmonitor, filters, hooks, ssh commands). So
git is given a folder of our own, whose configuration takes over only settings known to be harmless.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

DEADLINE_S = 60
KEPT_VARIABLES = ("GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM", "GIT_CONFIG_NOSYSTEM", "GIT_EXEC_PATH")
HARMLESS = {
    "core.repositoryformatversion", "core.filemode", "core.autocrlf", "core.eol", "core.safecrlf", "core.symlinks",
    "core.ignorecase", "core.trustctime", "core.checkstat", "core.precomposeunicode", "core.sparsecheckout",
    "core.sparsecheckoutcone", "index.sparse", "extensions.objectformat", "extensions.refstorage",
}  # fmt: skip


def has_uncommitted_changes(root: Path) -> bool:
    """Return whether git knows files below `root` that differ from the last commit; False outside a work tree.

    Raises ValueError where git cannot tell.
    """
    top = next((folder for folder in (root, *root.parents) if os.path.lexists(folder / ".git")), None)
    git = _program(root)
    if top is None or git is None:
        return False
    try:
        with tempfile.TemporaryDirectory(prefix="retrofit-git-") as folder:
            environ = _enter(Path(folder), top, git)
            command = ["status", "--porcelain", "--untracked-files=no", "--ignore-submodules=all", "--", str(root)]
            return bool(_run(git, ["--no-optional-locks", *command], environ, top).strip())
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise ValueError(f"git cannot tell whether {root} has uncommitted changes ({error}); --force writes") from error


def _program(root: Path) -> str | None:
    """Return the path of git; never one from a folder of the search path that is relative, or in the project."""
    for folder in os.environ.get("PATH", os.defpath).split(os.pathsep):
        program = os.path.join(folder, "git")
        is_inside = root in (Path(os.path.realpath(program)), *Path(os.path.realpath(program)).parents)
        if os.path.isabs(folder) and not is_inside and os.access(program, os.X_OK):
            return program
    return None


def _enter(folder: Path, top: Path, git: str) -> dict[str, str]:
    """Make `folder` a git folder with the commits, the references and the index of the work tree `top`."""
    own = top / ".git"
    if own.is_file():  # of a linked work tree, or of a submodule
        own = top / _line(own).partition("gitdir:")[2].strip()
    common = own / _line(own / "commondir") if (own / "commondir").is_file() else own
    (folder / "HEAD").write_bytes(_line(own / "HEAD").encode() + b"\n")
    for name in ("objects", "refs", "packed-refs", "reftable", "shallow"):
        if (common / name).exists():
            (folder / name).symlink_to(common / name)
    environ = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    environ.update({name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ})
    lines = _run(git, ["config", "--null", "--list", "--file", str(common / "config")], environ, folder).split("\0")
    for key, _, value in (line.partition("\n") for line in lines):
        if key in HARMLESS:
            _run(git, ["config", "--file", str(folder / "config"), key, value or "true"], environ, folder)
    index = own / "index"
    environ.update(
        GIT_DIR=str(folder), GIT_WORK_TREE=str(top), GIT_INDEX_FILE=str(index),
        GIT_ALLOW_PROTOCOL="", GIT_NO_LAZY_FETCH="1", GIT_TERMINAL_PROMPT="0", GIT_PAGER="cat",
    )  # fmt: skip
    for shared in own.glob("sharedindex.*"):
        (folder / shared.name).symlink_to(shared)
    return environ


def _line(path: Path) -> str:
    if not path.is_file():
        raise ValueError(f"{path} is not a file")
    with open(path, encoding="utf-8", errors="surrogateescape") as file:
        return file.readline(4096).strip()


def _run(git: str, arguments: list[str], environ: dict[str, str], folder: Path) -> str:
    result = subprocess.run(
        [git, *arguments], cwd=folder, env=environ, capture_output=True, stdin=subprocess.DEVNULL, timeout=DEADLINE_S
    )
    if result.returncode:
        said = result.stderr.decode(errors="replace").strip().splitlines()
        raise ValueError(said[-1] if said else f"exit status {result.returncode}")
    return result.stdout.decode(errors="surrogateescape")
