"""The start of a project's script by its own command: from which folder, as a file or as a module.

That is decided by where the imports are found: `python tools/train.py`, or `python -m tools.train` where only the
folder of the command holds what is imported.
"""

from __future__ import annotations

import keyword
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .modules import Modules
from .repository import SOURCE_FOLDER, common_folder, may_hold, tree_of


@dataclass(frozen=True)
class Start:
    """The start of `entry` in the folder `root`.

    `module`: it is started as `python -m module`. `path`: folders that have to be in PYTHONPATH. `is_guessed`: it may
    as well be started in the other way, as a file or as a module of `root`.
    """

    entry: Path
    root: Path
    module: str | None = None
    path: tuple[Path, ...] = ()
    is_guessed: bool = False

    @property
    def script(self) -> str:
        """The path of the script as the command has it."""
        path = os.path.relpath(self.entry, self.root)
        return f"./{path}" if path.startswith("-") else path  # not an option

    @property
    def words(self) -> list[str]:
        """What follows `python` or `retrofit verify`: the script, or the module with its -m."""
        return ["-m", self.module] if self.module else [self.script]

    @property
    def first_folder(self) -> Path:
        """The folder that Python searches first: that of a script, or the one in which a module is started."""
        return self.root if self.module else self.entry.parent

    @property
    def folders(self) -> list[str]:
        """The folders of PYTHONPATH, relative to `root`."""
        return [os.path.relpath(folder, self.root) for folder in self.path]


def find_script(module: str, root: Path) -> tuple[Path, Path]:
    """Return the file of a module that is started from `root`, and the folder in which it is found.

    Raises ValueError where there is none.
    """
    parts = module.split(".")
    if not all(part.isidentifier() for part in parts):
        raise ValueError(f"-m {module} is not the name of a module; without -m a script is given by its path")
    for base in (root, root / SOURCE_FOLDER):
        for path in (base.joinpath(*parts).with_name(f"{parts[-1]}.py"), base.joinpath(*parts, "__main__.py")):
            if path.is_file():
                return Path(os.path.realpath(path)), base
    raise ValueError(f"no module {module} in {root}; name with --root the folder that `python -m {module}` starts in")


def read_module(module: str, root: Path | None) -> tuple[Modules, Start]:
    """Read the project of `python -m module`, started in `root` (default: the current folder)."""
    root = Path(os.path.realpath(root or os.curdir))
    entry, base = find_script(module, root)
    modules = Modules(entry, root, as_module=True, path=[base] if base != root else _python_path(root))
    return modules, Start(entry, root, module, _needed(modules))


def read_script(entry: Path, root: Path | None, texts: Mapping[Path, bytes] | None = None) -> tuple[Modules, Start]:
    """Read the project of a script, started in `root` (default: the folder that its imports ask for).

    `texts` count instead of what the files hold.
    """
    entry = Path(os.path.realpath(entry))
    given = Path(os.path.realpath(root)) if root else None
    path = _python_path(entry.parent)
    modules = Modules(entry, given or entry.parent, texts, path=path)
    package = _package_root(modules)
    found = _root(modules, package)
    start = Start(entry, given or found)
    if start.root == entry.parent and not package:
        return modules, Start(entry, start.root, path=_needed(modules))
    module = _dotted(entry, start.root)
    needed = _needed(modules)
    is_of_root = needed == (start.root,) and entry.parent not in modules.bases
    if module and (is_of_root or (package and start.root in (package, *package.parents))):
        modules = Modules(entry, start.root, texts, as_module=True, path=path)
        return modules, Start(entry, start.root, module, _needed(modules), is_guessed=not package)
    if start.root != modules.root:
        modules = Modules(entry, start.root, texts, path=path)
    return modules, Start(entry, start.root, path=_needed(modules), is_guessed=start.root in modules.bases)


def _python_path(folder: Path) -> list[Path]:
    """Return the folders of PYTHONPATH that are part of the project around `folder`, or above it.

    Others, a folder next to the project say, hold what is installed in the user's own way.
    """
    given = [Path(os.path.realpath(name)) for name in os.environ.get("PYTHONPATH", "").split(os.pathsep) if name]
    tree = tree_of(folder)
    own = (path for path in given if path.is_dir() and (tree in (path, *path.parents) or path in folder.parents))
    return [path for path in own if may_hold(common_folder(path, folder), folder)]


def _root(modules: Modules, package: Path | None) -> Path:
    """Return the innermost folder that holds the script and all folders in which its modules are found."""
    root = modules.entry.path.parent
    for base in [*modules.bases, *([package] if package else [])]:
        root = common_folder(root, base)
    return root


def _package_root(modules: Modules) -> Path | None:
    """Return the folder that holds the package of the script, None where it does not need to be part of one."""
    folder = modules.entry.path.parent
    levels = [one.level for one in modules.relative if one.source is modules.entry and not one.is_optional]
    if not levels:
        return None
    root = folder
    for _ in range(max(levels)):
        root = root.parent
    while (root / "__init__.py").is_file():
        root = root.parent
    return root if may_hold(root, folder) else None


def _needed(modules: Modules) -> tuple[Path, ...]:
    """Return the folders in which modules are found and that Python does not search by itself."""
    own = modules.root if modules.as_module else modules.entry.path.parent
    searched = {own, *(added.folder for added in modules.added.values() if added.is_sure)}
    return tuple(base for base in modules.folders if base in modules.bases and base not in searched)


def _dotted(entry: Path, root: Path) -> str | None:
    """Return the name of the module that a file is below `root`, None where it can have none."""
    parts: Sequence[str] = Path(os.path.relpath(entry, root)).with_suffix("").parts
    if parts[-1] == "__main__":
        parts = parts[:-1]
    is_name = bool(parts) and all(part.isidentifier() and not keyword.iskeyword(part) for part in parts)
    return ".".join(parts) if is_name else None
