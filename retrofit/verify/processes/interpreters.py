"""Interpreters with hash seeds of their own, from which ranks are forked.

The order of a set of strings follows hashes that each interpreter seeds at random. A launcher starts an interpreter
for every rank, and a script that takes an order from such a set is another one on each rank. Ranks forked from one
parent would share its hash seed and hide that.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import pickle
import signal
import socket
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

from retrofit.packages import import_path

FIRST_HASH_SEED = 20260  # rank r's interpreter has PYTHONHASHSEED=20260 + r; rank 0 has that of the parent
START_LIMIT_S = 120.0
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # <linux/prctl.h>
# Only what is imported from the folder of the kit: what lies next to it may have the name of any module.
START = """\
import sys
sys.path[:] = [{kit!r}]
from retrofit.packages import import_path
sys.path[:], import_path.before[:] = {path!r}, {before!r}
from retrofit.verify.processes.interpreters import serve
serve({channel}, {parent}, {modules!r})
"""


class Interpreter:
    """A Python process that forks ranks for its parent, as children of the parent."""

    def __init__(self, hash_seed: int, modules: Sequence[str]) -> None:
        self._channel, theirs = socket.socketpair()
        program = START.format(
            kit=str(Path(import_path.__file__).resolve().parents[2]),
            path=sys.path,
            before=import_path.before,
            channel=theirs.fileno(),
            parent=os.getpid(),
            modules=list(modules),
        )
        theirs.set_inheritable(True)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, *subprocess._args_from_interpreter_flags(), "-c", program],  # type: ignore[attr-defined]
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,  # warnings of torch's import: the parent has printed them
                env={**os.environ, "PYTHONHASHSEED": str(hash_seed)},
                close_fds=False,  # a rank inherits what a forked one does
                start_new_session=True,  # Ctrl-C is for the parent, which ends the ranks first
            )
        self._is_ready = False

    def wait_until_ready(self) -> bool:
        """Return whether the interpreter has imported everything. False: it could not be started as our child."""
        if not self._is_ready and self._channel.fileno() != -1:
            self._channel.settimeout(START_LIMIT_S)
            with suppress(OSError):
                self._is_ready = self._channel.recv(1) == b"r"
            if not self._is_ready:
                self.close()
        return self._is_ready

    def fork(self, *arguments: Any, **options: Any) -> int | None:
        """Fork a process that calls `run_rank(run_traced, *arguments, **options)`, and return its id.

        None where that failed. Hold back the signals that end this process meanwhile.
        """
        if not self.wait_until_ready():
            return None
        try:
            self._channel.sendall(pickle.dumps((arguments, options)))
            return int(self._channel.recv(64)) or None
        except (OSError, ValueError):
            self.close()
            return None

    def close(self) -> None:
        """End the interpreter; the ranks that it has forked continue."""
        self._is_ready = False
        self._channel.close()
        self._process.kill()
        self._process.wait()


@contextmanager
def interpreters(
    num_ranks: int, modules: Sequence[str], environ: Mapping[str, str]
) -> Iterator[dict[int, Interpreter]]:
    """Start an interpreter for every rank but 0, each with another hash seed, for the time of the block.

    They import `modules` meanwhile. None are started where PYTHONHASHSEED is set, which all ranks then have under a
    launcher as well, and outside Linux, where a process cannot adopt the children of another one.
    """
    started: dict[int, Interpreter] = {}
    is_random = {**os.environ, **environ}.get("PYTHONHASHSEED", "random") in ("", "random")
    if sys.platform != "linux" or not is_random or not sys.executable:
        yield started
        return
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    try:
        for rank in range(1, num_ranks):
            started[rank] = Interpreter(FIRST_HASH_SEED + rank, modules)
        yield started
    finally:
        for interpreter in started.values():
            interpreter.close()
        _prctl(PR_SET_CHILD_SUBREAPER, 0)


def serve(channel: int, parent: int, modules: Sequence[str]) -> NoReturn:
    """Import the modules, then fork a rank for each request of the parent, until that has ended."""
    _prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL))
    if os.getppid() != parent:  # it has ended before, or sys.executable is a program that starts Python
        os._exit(1)
    os.set_inheritable(channel, False)
    for name in (*modules, "retrofit.verify.trace.run"):
        with suppress(ImportError):
            importlib.import_module(name)
    with socket.socket(fileno=channel) as connection, connection.makefile("rb") as requests:
        connection.sendall(b"r")
        while True:
            try:
                arguments, options = pickle.load(requests)
            except (EOFError, OSError):
                os._exit(0)
            connection.sendall(b"%d" % _fork_for(parent, channel, arguments, options))


def _fork_for(parent: int, channel: int, arguments: tuple[Any, ...], options: dict[str, Any]) -> int:
    """Fork a rank that is a child of `parent`, and return its id, 0 where there are too many processes.

    The process between us and the rank ends at once, and then the rank has a new parent: the nearest ancestor that
    adopts orphans (PR_SET_CHILD_SUBREAPER).
    """
    reader, writer = os.pipe()
    warnings.simplefilter("ignore", DeprecationWarning)  # of a fork with threads, see launch.py
    between = os.fork()
    if between == 0:
        try:
            _fork_and_tell(parent, (reader, writer, channel), arguments, options)
        finally:
            os._exit(0)
    os.close(writer)
    with open(reader, "rb") as answer:
        pid = int(answer.read() or 0)
    os.waitpid(between, 0)
    return pid


def _fork_and_tell(parent: int, opened: tuple[int, int, int], arguments: tuple[Any, ...], options: Any) -> None:
    between = os.getpid()
    rank = os.fork()
    if rank:
        os.write(opened[1], b"%d" % rank)
        return
    for number in opened:
        os.close(number)
    while os.getppid() == between:  # a rank asks to die with its parent, which must not be that process
        time.sleep(0.0005)
    if os.getppid() == parent:
        from retrofit.verify.trace.run import run_traced

        from .child import run_rank

        run_rank(run_traced, *arguments, **options)


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)
