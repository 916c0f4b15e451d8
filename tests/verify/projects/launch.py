"""Run scripts of small projects, each in one or more processes that are forked from one that has imported torch.

    python launch.py < runs        a run per line, as JSON: the arguments of `Launcher.run`

Writes a line of JSON per run: {"statuses": [exit status of each rank, null = killed], "outputs": [text of each rank],
"seconds"}. A fork takes 0.1 s where a start takes seconds. With one process no launcher's variable is set.
"""

from __future__ import annotations

import gc
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
_kept: list[Any] = []  # see _keep_backends
GRACE_S = 5.0  # for the peers of a rank that failed, to end by themselves


class Launcher:
    """A process that takes runs, for tests: `with Launcher() as launcher: launcher.run(...)`."""

    def __enter__(self) -> Launcher:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        self._process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        return self

    def __exit__(self, *exception: Any) -> None:
        assert self._process.stdin and self._process.stdout
        self._process.stdin.close()
        self._process.wait(timeout=300)
        self._process.stdout.close()

    def run(
        self,
        folder: str | os.PathLike[str],
        script: str,
        arguments: list[str],
        world_size: int = 1,
        timeout_s: float = 600.0,
        waits_at_exit: bool = False,
        **environment: str,
    ) -> dict[str, Any]:
        """Run `script` in `folder` with additional environment variables; see the module.

        `waits_at_exit`: each process ends as the interpreter does, with its threads and exit functions.
        """
        assert self._process.stdin and self._process.stdout
        request = {"folder": str(folder), "script": script, "arguments": arguments, "world_size": world_size}
        request.update(timeout_s=timeout_s, waits_at_exit=waits_at_exit, environment=environment)
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())


def run(
    folder: str,
    script: str,
    arguments: list[str],
    world_size: int,
    timeout_s: float,
    waits_at_exit: bool,
    environment: dict[str, str],
) -> dict[str, Any]:
    """Fork the ranks of one run, wait for them and return what the module's docstring says."""
    started, port = time.monotonic(), _free_port()
    outputs = [tempfile.TemporaryFile() for _ in range(world_size)]  # noqa: SIM115
    pids = {}
    for rank in range(world_size):
        pid = os.fork()
        if pid == 0:
            os.environ.update(environment)
            sys.path[1:1] = [entry for entry in environment.get("PYTHONPATH", "").split(os.pathsep) if entry]
            status = _become_rank(folder, script, arguments, rank, world_size, port, outputs[rank].fileno())
            if waits_at_exit:
                sys.exit(status)
            os._exit(status)  # the interpreter's own exit after DDP can abort under load
        pids[pid] = rank
    statuses = _wait(pids, started + timeout_s)
    texts = []
    for file in outputs:
        file.seek(0)
        texts.append(file.read().decode(errors="replace"))
        file.close()
    ended = [statuses[rank] for rank in range(world_size)]
    return {"statuses": ended, "outputs": texts, "seconds": round(time.monotonic() - started, 2)}


def _become_rank(
    folder: str, script: str, arguments: list[str], rank: int, world_size: int, port: int, output: int
) -> int:
    """Run the script in this process and return its exit status."""
    status = 1
    try:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.chdir(folder)
        if world_size > 1:
            values = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world_size, "LOCAL_WORLD_SIZE": world_size}
            os.environ.update({name: str(value) for name, value in values.items()})
            os.environ.update(MASTER_ADDR="localhost", MASTER_PORT=str(port))
        if rank > 0 and os.environ.get("SHOW_WRITES"):
            sys.addaudithook(_show_write)
        sys.argv = [script, *arguments]
        sys.path[0] = os.path.abspath(os.path.dirname(script))
        _keep_backends()
        runpy.run_path(script, run_name="__main__")
        status = 0
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
        if isinstance(error.code, str):
            print(error.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    return status


def _keep_backends() -> None:
    """Keep the backends of a group that a script leaves: before torch 2.8 some hang when they are freed at its end."""
    import torch.distributed as dist

    leave = dist.destroy_process_group

    def leave_and_keep(group: Any = None) -> None:
        left = group or dist.group.WORLD
        _kept.extend(left._get_backend(device) for device in left._device_types)
        leave(group)

    dist.destroy_process_group = leave_and_keep


def _show_write(event: str, arguments: tuple[Any, ...]) -> None:
    """Print what this process writes in its folder, but for caches."""
    if event == "open":
        path, mode, flags = arguments
        is_writing = any(letter in mode for letter in "wax+") if mode else flags & (os.O_WRONLY | os.O_RDWR)
    else:
        path, is_writing = (arguments or [""])[0], event in ("os.mkdir", "os.remove", "os.rename", "shutil.rmtree")
    if is_writing and isinstance(path, (str, bytes, os.PathLike)):
        place = os.path.abspath(os.fsdecode(path))
        if place.startswith(os.getcwd()) and "__pycache__" not in place:
            print(f"{event} {place}", file=sys.stderr)


def _wait(pids: dict[int, int], deadline: float) -> dict[int, int | None]:
    """Return the exit status by rank; None for a rank that had to be killed."""
    statuses: dict[int, int | None] = {}
    while pids:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid:
            statuses[pids.pop(pid)] = os.waitstatus_to_exitcode(status)
            if status != 0:
                deadline = min(deadline, time.monotonic() + GRACE_S)
        elif time.monotonic() > deadline:
            for late, rank in pids.items():
                os.kill(late, signal.SIGKILL)
                os.waitpid(late, 0)
                statuses[rank] = None
            pids = {}
        else:
            time.sleep(0.02)
    return statuses


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("localhost", 0))
        return listener.getsockname()[1]


def main() -> None:
    import tensorboardX  # noqa: F401
    import torch._dynamo
    import torch.distributed.checkpoint  # noqa: F401
    import torchvision.transforms.v2  # noqa: F401

    gc.freeze()  # no fork's collector looks through the modules

    # What torch 2.1 says of its own code when it loads a file with weights_only=True.
    warnings.filterwarnings("ignore", message="TypedStorage is deprecated")
    for line in sys.stdin:
        print(json.dumps(run(**json.loads(line))), flush=True)
    gc.unfreeze()


if __name__ == "__main__":
    main()
