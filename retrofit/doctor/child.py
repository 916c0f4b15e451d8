"""Run a command in a child process, with a time limit."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Not `python -m`: that looks into the current folder first, where the user's project may have a `retrofit` of its own.
CODE = (
    "import sys; root, name = sys.argv[1:3]; sys.path[:] = [root, *filter(None, sys.path)]; "
    "import runpy; del sys.argv[1:3]; runpy.run_module(name, run_name='__main__', alter_sys=True)"
)


@dataclass(frozen=True)
class Ended:
    """The result of a process."""

    status: int | None  # exit status; None: it was killed at the deadline
    stdout: str
    stderr: str


def python_command(module: str, *arguments: str) -> list[str]:
    """Return the command that runs a module of this copy of the kit with this Python."""
    return [sys.executable, "-c", CODE, str(ROOT), module, *arguments]


def run(command: Sequence[str], deadline_s: float, environ: Mapping[str, str] | None = None) -> Ended:
    """Run `command` to its end, or kill it after `deadline_s`. Raises OSError when it cannot be started."""
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environ
    )
    try:
        out, err = process.communicate(timeout=deadline_s)
        return Ended(process.returncode, _text(out), _text(err))
    except subprocess.TimeoutExpired as error:
        return Ended(None, _text(error.output), _text(error.stderr))
    finally:
        end(process)


def end(process: subprocess.Popen) -> None:
    """Kill `process` if it still runs and close its pipes. Waits 5 s at most."""
    if process.poll() is None:
        process.kill()
        # A process that waits for a broken GPU driver inside the kernel cannot be killed.
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(5)
    for pipe in (process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()


def _text(output: bytes | None) -> str:
    return (output or b"").decode(errors="replace")
