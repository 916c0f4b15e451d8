"""Runs of the script on one process: alone, and in several copies at once."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

from retrofit.doctor.network.allreduce import without_launcher
from retrofit.plan.profile.process import environment
from retrofit.verify.processes.project_copy import copy_project
from retrofit.why.run import ScriptFailed, Start, last_lines, still_running, with_kit


@contextmanager
def profiled(start: Start, copies: int, num_gpus: int) -> Iterator[Path]:
    """Run `copies` of the script at once, one process each, and give the folder with what they have measured.

    With `num_gpus` each copy sees a GPU of its own. Without, several copies have one thread each, as torchrun sets it,
    unless OMP_NUM_THREADS is set. Raises ScriptFailed.
    """
    with tempfile.TemporaryDirectory(prefix="retrofit_plan_") as temporary, ExitStack() as open_files:
        folder = Path(temporary) / "profile"
        folder.mkdir()
        running = []
        try:
            for number in range(copies):
                project = Path(temporary) / f"project{number}"
                copy_project(start.project, project, leave_out=[])
                log = open_files.enter_context((Path(temporary) / f"output{number}.txt").open("w+"))
                environ = _environ(start, folder, number, copies, num_gpus)
                running.append((_started(start, project, environ, log), log))
            _wait(running, start, folder)
        finally:
            for process, _ in running:
                if process.poll() is None:
                    process.kill()
                    process.wait()
        yield folder


def _started(start: Start, project: Path, environ: dict[str, str], log: IO[str]) -> subprocess.Popen:
    script = str(project / start.script.relative_to(start.project))
    command = [sys.executable, "-m", "retrofit.plan.profile.process", script, *start.arguments]
    return subprocess.Popen(command, cwd=project, env=environ, stdout=log, stderr=subprocess.STDOUT)


def _environ(start: Start, folder: Path, number: int, copies: int, num_gpus: int) -> dict[str, str]:
    kept = without_launcher(os.environ)
    environ = with_kit({**kept, **environment(folder, number, copies, start.steps)})
    if num_gpus:
        visible = kept.get("CUDA_VISIBLE_DEVICES", "").split(",") if kept.get("CUDA_VISIBLE_DEVICES") else []
        environ["CUDA_VISIBLE_DEVICES"] = visible[number] if visible else str(number)
    elif copies > 1:
        environ.setdefault("OMP_NUM_THREADS", "1")
    return environ


def _wait(running: Sequence[tuple[subprocess.Popen, IO[str]]], start: Start, folder: Path) -> None:
    last = time.monotonic() + start.time_limit_s
    for process, log in running:
        try:
            status = process.wait(max(0.1, last - time.monotonic()))
        except subprocess.TimeoutExpired as error:
            raise still_running(start, "one process") from error
        if status:
            log.seek(0)
            raise ScriptFailed(f"the script ended with status {status} on one process:\n  {last_lines(log.read())}")
