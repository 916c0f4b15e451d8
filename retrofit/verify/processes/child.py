"""One rank's process, from the fork to its end: it starts and ends like `python script.py`."""

from __future__ import annotations

import atexit
import ctypes
import faulthandler
import gc
import importlib
import importlib.abc
import importlib.machinery
import io
import logging
import multiprocessing.process
import multiprocessing.util
import os
import signal
import sys
import threading
import traceback
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Callable, NoReturn

import torch

from retrofit.packages import import_path

LAUNCHER_NAMES = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK"}
LAUNCHER_PREFIXES = ("MASTER_", "GROUP_", "ROLE_", "SLURM_", "RETROFIT_", "TORCHELASTIC_", "OMPI_", "PMI_", "PMIX_")
# Facts about the machine, not about the launch; scripts find their data and size their pools with them.
KEPT_NAMES = {"SLURM_TMPDIR", "SLURM_CPUS_PER_TASK"}
EXIT_LIMIT_S = 5.0
PR_SET_PDEATHSIG = 1  # <linux/prctl.h>

Target = Callable[[Any, str, list], Any]
_kept_open: list[object] = []


def rank_environ(
    caller: Mapping[str, str], *, rank: int, world_size: int, master_port: int | None, num_threads: int
) -> dict[str, str]:
    """Return the environment of one rank: the caller's, with this launch's variables in place of any other launch's.

    With `master_port` None there is no launcher: its variables are absent.
    """
    environ = {
        name: value
        for name, value in caller.items()
        if name in KEPT_NAMES or not (name in LAUNCHER_NAMES or name.startswith(LAUNCHER_PREFIXES))
    }
    environ["OMP_NUM_THREADS"] = str(num_threads)
    if master_port is None:
        return environ
    launch = {
        "RANK": rank,
        "WORLD_SIZE": world_size,
        "LOCAL_RANK": rank,
        "LOCAL_WORLD_SIZE": world_size,
        "GROUP_RANK": 0,
        "NODE_RANK": 0,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": master_port,
        "RETROFIT_CONSISTENCY": "off",  # what differs between ranks is for the checks to find, and to explain
    }
    return {**environ, **{name: str(value) for name, value in launch.items()}}


def run_rank(
    target: Target, settings: Any, script: str, argv: Sequence[str], *, environ: Mapping[str, str], num_threads: int
) -> NoReturn:
    """Run `target(settings, script, argv)` in this freshly forked process and end the process with its status.

    Never returns and never raises: what is above on the stack belongs to the parent. `settings` has `folder`, `rank`
    and `project`.
    """
    status = 1
    try:
        _leave_parent()
        _redirect(Path(settings.folder), settings.rank)
        _forget_exit_work()
        folder = settings.project if getattr(settings, "module", "") else os.path.dirname(script)
        start = getattr(settings, "start", "")
        _enter_project(settings.project, script, argv, environ, os.path.join(settings.project, folder), start)
        torch.set_num_threads(num_threads)
        status = _call(target, settings, script, argv)
        _finish(status)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def _leave_parent() -> None:
    """Start a session of its own, with the signal handlers of a fresh interpreter, and die when the parent dies."""
    os.setsid()
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.set_wakeup_fd(-1)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    if sys.platform == "linux":
        # A parent that is killed outright cannot end its ranks; without this they would train on.
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)


def _redirect(folder: Path, rank: int) -> None:
    """Read from nothing, print to `rank{r}.log`, and write every thread's stack to `rank{r}.stack` on SIGUSR1."""
    _kept_open.extend([sys.stdin, sys.stdout, sys.stderr, sys.__stdin__, sys.__stdout__, sys.__stderr__])
    null = os.open(os.devnull, os.O_RDONLY)
    log = os.open(folder / f"rank{rank}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o666)
    for source, number in ((null, 0), (log, 1), (log, 2)):
        os.dup2(source, number)
    for opened in {null, log} - {0, 1, 2}:
        os.close(opened)
    sys.stdin = sys.__stdin__ = _standard_stream(0, "r")  # type: ignore[misc]
    sys.stdout = sys.__stdout__ = _standard_stream(1, "w")  # type: ignore[misc]
    sys.stderr = sys.__stderr__ = _standard_stream(2, "w")  # type: ignore[misc]
    stack = open(folder / f"rank{rank}.stack", "w", encoding="utf-8")  # noqa: SIM115  written to until the very end
    _kept_open.append(stack)
    faulthandler.register(signal.SIGUSR1, file=stack, all_threads=True)
    faulthandler.enable(file=sys.stderr)


def _standard_stream(number: int, mode: str) -> Any:
    return open(number, mode, buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)


def _forget_exit_work() -> None:
    """Leave to the parent what it has registered for its own end; keep what a fresh interpreter would do at its end."""
    gc.freeze()  # the parent's objects are neither collected here nor among the files that `_flush_files` finds
    for finalizer in list(weakref.finalize._registry):  # type: ignore[attr-defined]
        finalizer.atexit = False  # a temporary folder of the parent, say
    atexit._clear()
    # The modules have registered these when they were imported, which will not happen again here.
    atexit.register(logging.shutdown)
    atexit.register(multiprocessing.util._exit_function)  # type: ignore[attr-defined]
    if getattr(weakref.finalize, "_registered_with_atexit", False):
        atexit.register(weakref.finalize._exitfunc)  # type: ignore[attr-defined]
    multiprocessing.util._finalizer_registry.clear()  # type: ignore[attr-defined]
    multiprocessing.util._run_after_forkers()  # type: ignore[attr-defined]
    multiprocessing.process._children.clear()  # type: ignore[attr-defined]


def _enter_project(
    project: str, script: str, argv: Sequence[str], environ: Mapping[str, str], folder: str, start: str
) -> None:
    """Be where `cd project/start && python script *argv` would be: folder, variables, arguments, import path, modules.

    `folder` is searched for modules first.
    """
    os.chdir(os.path.join(project, start))
    os.environ.clear()
    os.environ.update(environ)
    os.environ["PWD"] = os.getcwd()
    # Spawned processes look for the main script there; it was set when the parent imported multiprocessing.
    multiprocessing.process.ORIGINAL_DIR = os.getcwd()  # type: ignore[attr-defined]
    sys.argv = [script, *argv]
    sys.path[:] = _import_path(os.path.abspath(folder), environ.get("PYTHONPATH", ""), project)
    # The project may carry its own copy of the kit, and that one is what trains there.
    for name in [name for name in sys.modules if name == "retrofit" or name.startswith("retrofit.")]:
        del sys.modules[name]
    importlib.invalidate_caches()


def _import_path(first: str, python_path: str, project: str) -> list[str]:
    """Return the folder `first`, then what this interpreter searches, without a checkout of the kit.

    Next to the kit are modules with names such as `utils`, and Python would take them before a folder `utils` of the
    project without `__init__.py`. Where the project is such a checkout itself, its modules are found last. Relative
    folders of PYTHONPATH are those of the copy in which the run happens.
    """
    relative = [os.path.abspath(name) for name in python_path.split(os.pathsep) if name and not os.path.isabs(name)]
    inherited = import_path.before[:]
    if not inherited:  # the parent is not the command line
        is_safe = getattr(sys.flags, "safe_path", False) or sys.flags.isolated
        inherited = sys.path[0 if is_safe else 1 :]  # the first may be the project before it was copied
    kit = str(Path(import_path.__file__).resolve().parents[2])
    if os.path.basename(kit) not in ("site-packages", "dist-packages"):
        inherited = [entry for entry in inherited if os.path.realpath(entry or ".") != kit]
        sys.meta_path.append(KitFinder(kit))
    own = [project] if os.path.isfile(os.path.join(project, "retrofit", "__init__.py")) else []
    return [first, *relative, *inherited, *own]


class KitFinder(importlib.abc.MetaPathFinder):
    """Finds the kit in its checkout, and nothing else there."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def find_spec(self, name: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        return importlib.machinery.PathFinder.find_spec(name, [self._folder]) if name == "retrofit" else None


def _call(target: Target, settings: Any, script: str, argv: Sequence[str]) -> int:
    """Call the target and return the exit status that the interpreter would give; -2 means an end by SIGINT."""
    try:
        target(settings, script, list(argv))
        return 0
    except SystemExit as error:
        if error.code is None:
            return 0
        if isinstance(error.code, int):
            return error.code & 0xFF
        print(error.code, file=sys.stderr)
        return 1
    except BaseException as error:
        error.with_traceback(_from_project(error.__traceback__, settings.project))
        sys.excepthook(type(error), error, error.__traceback__)
        return -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1


def _from_project(trace: TracebackType | None, project: str) -> TracebackType | None:
    """Return the traceback from its first frame in the project on, or all of it when it has none there."""
    inner = trace
    while inner is not None:
        if os.path.abspath(inner.tb_frame.f_code.co_filename).startswith(os.path.join(project, "")):
            return inner
        inner = inner.tb_next
    return trace


def _finish(status: int) -> NoReturn:
    """Do what an interpreter does at its end, but do not wait forever for threads; end with `status`."""
    limit = threading.Timer(EXIT_LIMIT_S, _stop_waiting, [status])
    limit.daemon = True
    limit.start()
    threading._shutdown()  # type: ignore[attr-defined]
    limit.cancel()
    _close(status)


def _stop_waiting(status: int) -> None:
    threads = [thread.name for thread in threading.enumerate() if not thread.daemon and thread.name != "MainThread"]
    print(f"threads still running {EXIT_LIMIT_S:g} s after the script's end: {', '.join(threads)}", file=sys.stderr)
    _close(status)


def _close(status: int) -> NoReturn:
    with suppress(Exception):  # Python 3.9 raises the last error of the handlers; each is already printed
        atexit._run_exitfuncs()
    _flush_files()  # before the collection, which closes a file and its buffer in any order
    gc.collect()
    _flush_files()
    if status == -signal.SIGINT:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit(status)


def _flush_files() -> None:
    """Write out files that the script left open, as the end of an interpreter does."""
    for candidate in gc.get_objects():
        if issubclass(type(candidate), (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)):
            with suppress(Exception):
                candidate.flush()
