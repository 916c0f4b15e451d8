"""Runs of the script: on several processes and on one, each in a copy of the project, one after the other."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from retrofit.verify.processes.project_copy import copy_project
from retrofit.why.process import environment

LAST_LINES = 12  # of a failed run
OF_TORCHRUN = re.compile(r"[EW]\d{4} .*torch/distributed/elastic")


class ScriptFailed(Exception):
    """The script ended without the steps that were asked for. The message has its status and last lines."""


@dataclass(frozen=True)
class Start:
    """How the script is started."""

    script: Path  # absolute
    project: Path  # the folder that is copied
    arguments: Sequence[str]
    steps: int
    time_limit_s: float
    variables: Mapping[str, str] = field(default_factory=dict)  # of the environment, beyond the user's


@contextmanager
def recorded(start: Start, num_processes: int) -> Iterator[Path]:
    """Run the script and give the folder with the marks of its ranks. Raises ScriptFailed."""
    with tempfile.TemporaryDirectory(prefix="retrofit_why_") as temporary:
        folder, project = Path(temporary) / "marks", Path(temporary) / "project"
        copy_project(start.project, project, leave_out=[])
        script = project / start.script.relative_to(start.project)
        _run(start, num_processes, script, project, folder)
        yield folder


def _run(start: Start, num_processes: int, script: Path, project: Path, folder: Path) -> None:
    module = ["-m", "retrofit.why.process", str(script), *start.arguments]
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={num_processes}"]
    command = [sys.executable, *(launcher if num_processes > 1 else []), *module]
    environ = with_kit({**os.environ, **start.variables, **environment(folder, start.steps)})
    try:
        done = subprocess.run(
            command, cwd=project, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            errors="replace", timeout=start.time_limit_s, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise still_running(start, f"{num_processes} processes") from error
    found = len(list(folder.glob("rank*.json"))) if folder.is_dir() else 0
    if done.returncode or found < num_processes:
        where = f"on {num_processes} processes"
        raise ScriptFailed(f"the script ended with status {done.returncode} {where}:\n  {last_lines(done.stdout)}")


def with_kit(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a process that imports this copy of the package."""
    folder = str(Path(__file__).resolve().parents[2])
    return {**environ, "PYTHONPATH": os.pathsep.join(filter(None, [folder, environ.get("PYTHONPATH", "")]))}


def still_running(start: Start, where: str) -> ScriptFailed:
    """Return the error of a script that has not ended in time."""
    return ScriptFailed(
        f"the script was still running after {start.time_limit_s:g} s on {where}; --time-limit gives it longer, fewer "
        "--steps end it earlier"
    )


def last_lines(output: str) -> str:
    """Return what the script has said last: not what torchrun says of the processes that it ends."""
    lines = [line for line in output.splitlines() if line.strip()]
    own = list(itertools.takewhile(lambda line: not OF_TORCHRUN.match(line), lines))
    return "\n  ".join((own or lines)[-LAST_LINES:])
