"""Check or install what train.py needs: the extra [reference] of pyproject.toml, for python_env.sh.

Standard library only.

  python dependencies.py check ROOT [EXTRA ...]     print what this interpreter lacks (exit 1) or nothing
  python dependencies.py install ROOT [EXTRA ...]   make ROOT/.venv have them all (exit 2 if that fails)

`pyproject.toml` is the only list of dependencies. They are installed by name; the project itself is not: it
runs from its folder, and so nothing has to be built.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

REFERENCE = "reference"  # the extra that every start needs, whichever others it asks for
MODULE_NAMES = {"PyYAML": "yaml", "Pillow": "PIL"}  # every other package imports by its own name
# In .venv until everything is installed; a run that finds it starts over.
UNFINISHED = "installation_unfinished"
LOG = "installation.log"  # in .venv: the output of pip
SHOWN_LINES = 12  # of the log, after a failure


class InstallError(RuntimeError):
    """The dependencies could not be installed; the message says what to do."""


def read_requirements(root: Path, extra: str) -> list[str]:
    """Return the requirements of an extra in ROOT/pyproject.toml, those with markers that hold for this Python.

    Raises ValueError when the file has no such list.
    """
    # Not tomllib: Python 3.9 and 3.10 have none, and this must run before anything is installed.
    path = root / "pyproject.toml"
    table = "project.optional-dependencies"
    text = re.sub(r"(?m)(^|\s)#.*$", "", path.read_text(encoding="utf-8"))
    section = re.search(rf"(?ms)^\[{re.escape(table)}\]$(.*?)(?=^\[|\Z)", text)
    values = re.search(rf"(?ms)^{re.escape(extra)} = \[(.*?)\]\s*$", section.group(1)) if section else None
    if values is None:
        raise ValueError(f"{path} has no list {extra!r} under [{table}]; restore the file")
    requirements = (text.partition(";") for text in re.findall(r'"([^"]+)"', values.group(1)))
    return [name.strip() for name, _, marker in requirements if _applies(marker.strip(), path)]


def _applies(marker: str, path: Path) -> bool:
    """Return whether an environment marker holds for this Python: none, or one of the two that this project uses."""
    if not marker:
        return True
    match = re.fullmatch(r"python_version (>=|<) '([\d.]+)'", marker)
    if match is None:
        raise ValueError(f"{path}: marker {marker!r} is not python_version >= '3.N' or < '3.N'; write it so")
    return (_release("{}.{}".format(*sys.version_info)) >= _release(match.group(2))) == (match.group(1) == ">=")


def missing_from_this_python(requirements: list[str], *, import_them: bool) -> list[str]:
    """Return what is wrong with each requirement that this interpreter does not meet (empty: nothing is).

    `import_them` also imports each package, which finds a broken installation. That takes seconds, and so it is not
    done again until something is installed, removed or found elsewhere.
    """
    problems = [problem for problem in map(_version_problem, requirements) if problem]
    if problems or not import_them:
        return problems
    done_before = _record_of_imports(requirements)
    if done_before.exists():
        return []
    for requirement in requirements:
        name = requirement_name(requirement)
        try:
            with contextlib.redirect_stdout(sys.stderr):
                importlib.import_module(MODULE_NAMES.get(name, name))
        except Exception as error:  # a broken binary package can raise anything
            problems.append(f"{name} cannot be imported ({type(error).__name__}: {error})")
    if not problems:
        with contextlib.suppress(OSError):  # if it cannot be written, the next start imports them again
            done_before.parent.mkdir(parents=True, exist_ok=True)
            done_before.touch()
    return problems


def install(root: Path, extras: list[str]) -> None:
    """Make ROOT/.venv an environment that has every dependency and `extras`, with one line per stage.

    The output of pip goes into a log file; its path is printed. One process at a time: a second one waits, then has
    nothing to do. Raises InstallError.
    """
    folder = root / ".venv"
    with _lock(root / ".venv.lock") as lock:
        if _is_complete(folder, root, extras):
            return
        python = _create(folder, lock)
        requirements = [text for extra in (REFERENCE, *extras) for text in read_requirements(root, extra)]
        log = folder / LOG
        _say(f"installing {len(requirements)} package(s) into {folder}, once; torch can be several GB; details: {log}")
        started = time.monotonic()
        # What is imported is compiled and kept then, which is quicker than to compile everything now; unless Python
        # keeps nothing: each start of a script would compile torch again.
        compiling = [] if sys.dont_write_bytecode else ["--no-compile"]
        command = [str(python), "-m", "pip", "install", "--no-input", *compiling, *requirements]
        _call(command, lock, "installing the dependencies", log)
        (folder / UNFINISHED).unlink(missing_ok=True)
        _say(f"installed in {time.monotonic() - started:.0f} s")


def _record_of_imports(requirements: list[str]) -> Path:
    """Return the path of the file that is created when all `requirements` have been imported.

    Its name changes with the interpreter and with the folders it imports from, which pip changes.
    """
    folders = [(folder, os.stat(folder).st_mtime_ns) for folder in sys.path[1:] if os.path.isdir(folder)]
    place = repr((sys.executable, sys.version, requirements, folders, os.environ.get("LD_LIBRARY_PATH")))
    cache = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))
    return cache / "retrofit" / f"imports_{hashlib.sha256(place.encode()).hexdigest()[:32]}"


def _version_problem(requirement: str) -> str | None:
    name = requirement_name(requirement)
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        return f"{name} is not installed"
    for operator, bound in re.findall(r"(>=|<)\s*([\d.]+)", requirement):
        # Only the release numbers: 2.1.0a0+build of a vendor's container is a 2.1.
        if (_release(version) >= _release(bound)) != (operator == ">="):
            return f"{name} is {version}, not {operator}{bound}"
    return None


def requirement_name(requirement: str) -> str:
    """Return the distribution's name: "numpy>=1.22" -> "numpy"."""
    match = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert match is not None, requirement
    return match.group()


def _release(version: str) -> tuple[int, ...]:
    numbers = [int(number) for number in re.match(r"[\d.]*", version).group().split(".") if number]  # type: ignore[union-attr]
    while numbers and numbers[-1] == 0:
        numbers.pop()  # 2.1 and 2.1.0 are the same version
    return tuple(numbers)


@contextlib.contextmanager
def _lock(path: Path) -> Iterator[int]:
    # The kernel releases a flock when its last holder ends, even if it is killed; pip inherits it.
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _say("another process is installing the dependencies; waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield file.fileno()


def _is_complete(folder: Path, root: Path, extras: list[str]) -> bool:
    python = folder / "bin" / "python"
    if (folder / UNFINISHED).exists() or not python.exists():
        return False
    check = [str(python), __file__, "check", str(root), *extras]
    return subprocess.run(check, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0


def _create(folder: Path, lock: int) -> Path:
    """Return the Python of the virtual environment `folder`, created if it is missing or unfinished."""
    python, marker = folder / "bin" / "python", folder / UNFINISHED
    if folder.exists() and any(folder.iterdir()) and not marker.exists():
        # Lacks a package or two, or belongs to the user: add to it, remove nothing.
        _check_usable(python, folder, lock)
        return python
    _check_can_create()
    doing = "starting over with the unfinished" if marker.exists() else "creating"
    _say(f"{doing} {folder} with {sys.executable}")
    folder.mkdir(exist_ok=True)
    marker.touch()
    for child in folder.iterdir():
        if child.is_dir() and not child.is_symlink():
            shutil.rmtree(child)
        elif child != marker:
            child.unlink()
    _call([sys.executable, "-m", "venv", str(folder)], lock, "creating a virtual environment")
    return python


def _check_usable(python: Path, folder: Path, lock: int) -> None:
    version_is_good = [str(python), "-c", "import sys; sys.exit(sys.version_info < (3, 9))"]
    if not python.exists() or subprocess.run(version_is_good, stderr=subprocess.DEVNULL).returncode != 0:
        raise InstallError(f"{folder} has no working bin/python >= 3.9; remove that folder, and run again")
    if subprocess.run([str(python), "-c", "import pip"], stderr=subprocess.DEVNULL).returncode != 0:
        _call([str(python), "-m", "ensurepip"], lock, f"adding pip to {folder}")


def _check_can_create() -> None:
    try:
        importlib.import_module("venv")
        importlib.import_module("ensurepip")
    except ImportError as error:
        version = f"{sys.version_info[0]}.{sys.version_info[1]}"
        raise InstallError(
            f"{sys.executable} cannot make a virtual environment ({error}); on Debian and Ubuntu run "
            f"`apt install python{version}-venv`, or activate a Python that has the dependencies; run again"
        ) from None


def _call(command: list[str], lock: int, doing: str, log: Path | None = None) -> None:
    """Run a command, its output in `log` if there is one; raise InstallError with the end of it if it fails."""
    with contextlib.ExitStack() as stack:
        output: Any = sys.stderr
        if log is not None:
            output = stack.enter_context(log.open("w", encoding="utf-8"))
            print(shlex.join(command), file=output, flush=True)
        status = subprocess.run(command, stdout=output, stderr=output, pass_fds=(lock,)).returncode
    if status == 0:
        return
    if log is None:
        raise InstallError(f"{doing} failed with status {status}, see above; command: {shlex.join(command)}")
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[1:]
    for line in lines[-SHOWN_LINES:]:
        print(f"    {line}", file=sys.stderr)
    raise InstallError(f"{doing} failed with status {status}, all of it in {log}; command: {shlex.join(command)}")


def _say(message: str) -> None:
    print(f"[python_env] {message}", file=sys.stderr, flush=True)


def main(arguments: list[str]) -> int:
    """Run one of the two commands of this file's docstring and return its exit status."""
    command, root, extras = arguments[0], Path(arguments[1]), arguments[2:]
    if command == "install":
        try:
            install(root, extras)
        except InstallError as error:
            _say(f"error: {error}")
            return 2
        except OSError as error:
            _say(f"error: {error}; make {root} writable, or activate a Python that has the dependencies")
            return 2
        except KeyboardInterrupt:
            _say("interrupted; the next run finishes the installation")
            return 130
        return 0
    assert command == "check", command
    if os.path.exists(os.path.join(sys.prefix, UNFINISHED)):
        print("its installation was interrupted")
        return 1
    problems = missing_from_this_python(read_requirements(root, REFERENCE), import_them=True)
    for extra in extras:
        problems += missing_from_this_python(read_requirements(root, extra), import_them=False)
    print(", ".join(problems))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
