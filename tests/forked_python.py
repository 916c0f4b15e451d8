"""A `python` for tests whose processes are forked from one that has imported torch: seconds less for each start.

    with ForkedPython() as python, python.in_place():
        subprocess.run([sys.executable, "train.py"])

`python` and `torchrun` on PATH are replaced too, and so shell scripts and torchrun start with it what they start.
Signals and the exit status are passed on, and a process that is killed takes its program with it. Not as in a fresh
interpreter: the program has the process group and the limits of the tests, and is no child of what started it; torch
has read the environment of the tests (OMP_NUM_THREADS=1); no sitecustomize is read. Start for real what depends on
these. Options of the interpreter other than -u, -m and -c start a fresh one.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import io
import json
import multiprocessing.process
import os
import runpy
import select
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import types
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn
from unittest import mock

CLIENT = Path(__file__).with_name("forked_python_client.py")
PRELOADED = (
    "torch", "torch._dynamo", "torch.distributed.checkpoint", "torch.distributed.fsdp", "torchvision.transforms.v2",
    "tensorboardX", "rich.table", "rich.progress", "tqdm", "yaml",
)  # fmt: skip


class ForkedPython:
    """A running server."""

    def __enter__(self) -> ForkedPython:
        self._temporary = tempfile.TemporaryDirectory(prefix="forked_python_")
        self.folder = Path(self._temporary.name)
        self.executable = str(self.folder / "python")
        address = str(self.folder / "socket")
        start = shlex.join([sys.executable, "-IS", str(CLIENT), address, sys.executable, self.executable])
        for script in Path(sys.executable).parent.iterdir():
            if not script.name.startswith(("python", "torchrun")):
                (self.folder / script.name).symlink_to(script)
        self._write("python", f'exec {start} "$@"')
        self._write("torchrun", f'exec {start} -m torch.distributed.run "$@"')
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        environment["OMP_NUM_THREADS"] = "1"
        command = [sys.executable, __file__, address]
        self._server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
        assert self._server.stdout and self._server.stdout.readline() == b"ready\n"
        return self

    def __exit__(self, *exception: Any) -> None:
        self._server.communicate(timeout=60)
        self._temporary.cleanup()

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Let sys.executable, and `python` and `torchrun` on PATH, be forked programs inside the block."""
        path = os.pathsep.join([str(self.folder), str(Path(sys.executable).parent), os.environ.get("PATH", "")])
        with mock.patch.object(sys, "executable", self.executable), mock.patch.dict(os.environ, PATH=path):
            yield

    def _write(self, name: str, line: str) -> None:
        (self.folder / name).write_text(f"#!/bin/sh\n{line}\n")
        (self.folder / name).chmod(0o755)


# ---- in the server


def serve(address: str) -> None:
    """Fork a program for every client until standard input ends."""
    for name in PRELOADED:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # no fork's collector looks through the modules
    keepers = set[int]()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen(64)
        print("ready", flush=True)
        while True:
            ready, _, _ = select.select([listener, 0], [], [])
            if 0 in ready:
                os._exit(0)
            connection, _ = listener.accept()
            keeper = os.fork()
            if keeper == 0:
                listener.close()
                keep(connection)
            connection.close()
            keepers.add(keeper)
            keepers -= {keeper for keeper in keepers if os.waitpid(keeper, os.WNOHANG)[0]}


def keep(connection: socket.socket) -> NoReturn:
    """Run a client's program in a process of its own: pass signals to it, and its exit status to the client."""
    content, streams, _, _ = socket.recv_fds(connection, 2**20, 3)
    length = int.from_bytes(content[:4], "big")
    while len(content) < length + 4:
        content += connection.recv(2**20)
    program = os.fork()
    if program == 0:
        connection.close()
        become(streams, **json.loads(content[4:]))
    for stream in streams:
        os.close(stream)
    ended = os.pidfd_open(program)
    while True:
        ready, _, _ = select.select([connection, ended], [], [])
        if ended in ready:
            _, status = os.waitpid(program, 0)
            connection.sendall(os.waitstatus_to_exitcode(status).to_bytes(4, "big", signed=True))
            os._exit(0)
        for number in connection.recv(64) or [signal.SIGKILL]:  # nothing: the client was killed
            os.kill(program, number)


def become(
    streams: list[int], executable: str, folder: str, environment: dict[str, str], arguments: list[str]
) -> NoReturn:
    """Be `python ARGUMENTS` and end with its exit status."""
    status = 1
    try:
        is_unbuffered = arguments[0] == "-u"
        enter(streams, executable, folder, environment, is_unbuffered or "PYTHONUNBUFFERED" in environment)
        run(arguments[1:] if is_unbuffered else arguments)
        status = 0
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
        if isinstance(error.code, str):
            print(error.code, file=sys.stderr)
    except BaseException as error:
        trace = error.__traceback__
        while trace and trace.tb_frame.f_code.co_filename in (__file__, "<frozen runpy>"):
            trace = trace.tb_next
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        status = -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    finally:
        # The interpreter's end without the freeing of all modules.
        threading._shutdown()
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        if status < 0:
            signal.signal(-status, signal.SIG_DFL)
            os.kill(os.getpid(), -status)
        os._exit(status & 0xFF)


def enter(streams: list[int], executable: str, folder: str, environment: dict[str, str], is_unbuffered: bool) -> None:
    """Take over the client's streams, folder and environment."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(folder)
    multiprocessing.process.ORIGINAL_DIR = folder  # where a loader's worker looks for the script
    os.environ.clear()
    os.environ.update(environment)
    sys.executable, tempfile.tempdir = executable, None
    sys.modules["numpy"].random.seed()  # as random and torch, each program has draws of its own
    for number, name in ((1, "stdout"), (2, "stderr")):
        errors = "backslashreplace" if number == 2 else None
        binary = open(number, "wb", buffering=0 if is_unbuffered else -1, closefd=False)  # noqa: SIM115  used to the end
        text = io.TextIOWrapper(binary, errors=errors, write_through=is_unbuffered)  # type: ignore[arg-type]
        text.reconfigure(line_buffering=number == 2 or text.isatty())
        setattr(sys, name, text)
        setattr(sys, f"__{name}__", text)


def run(arguments: list[str]) -> None:
    """Run a script, a module or a text in this process."""
    searched = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    if arguments[0] == "-c":
        sys.argv, sys.path[:1] = ["-c", *arguments[2:]], ["", *searched]
        sys.modules["__main__"] = types.ModuleType("__main__")
        exec(compile(arguments[1], "<string>", "exec"), sys.modules["__main__"].__dict__)
    elif arguments[0] == "-m":
        sys.argv, sys.path[:1] = arguments[1:], [os.getcwd(), *searched]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv, sys.path[:1] = arguments, [os.path.dirname(os.path.realpath(arguments[0])), *searched]
        runpy.run_path(arguments[0], run_name="__main__")


if __name__ == "__main__":
    serve(sys.argv[1])
