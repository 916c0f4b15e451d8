"""A driver process for tests of forked runs, and the check that none of their processes is left."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[1]
DEADLINE_S = 300


class Driver:
    """A fresh process that forks, see verify_processes_driver.py."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.process = subprocess.Popen(
            [sys.executable, str(ROOT / "tests" / "verify_processes_driver.py"), str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "TMPDIR": str(folder)},
            cwd=folder,
        )

    def ask(self, *launches: dict, caller_environ: dict | None = None, progress_fails: bool = False, **options) -> None:
        request = {"launches": launches, "options": {"time_limit_s": DEADLINE_S, **options}}
        request.update(caller_environ=caller_environ or {}, progress_fails=progress_fails)
        print(json.dumps(request), file=self.process.stdin, flush=True)

    def answer(self) -> dict:
        line = self.process.stdout.readline()
        assert line, "the driver has died"
        assert psutil.Process(self.process.pid).children() == []
        return json.loads(line)

    def run(self, launch: dict, **options) -> dict:
        self.ask(launch, **options)
        reply = self.answer()
        assert reply["error"] is None
        return reply["results"][0]

    def stop(self) -> None:
        self.process.stdin.close()
        self.process.wait(DEADLINE_S)
        self.process.stdout.close()


@contextmanager
def driving(folder: Path) -> Iterator[Driver]:
    """Start a driver that ends by itself, and check that it, not one of its children, has done its exit work."""
    driver = Driver(folder)
    try:
        yield driver
        before = {path.name for path in folder.iterdir()}
        assert any(name.startswith("parents_folder") for name in before), "a child has done the parent's exit work"
        assert "end_of_the_driver" not in before, "a child has done the parent's exit work"
    finally:
        driver.stop()
    assert driver.process.returncode == 0
    assert {path.name for path in folder.iterdir()} == {"end_of_the_driver", "buffered.txt"}
    assert (folder / "buffered.txt").read_text() == "once"


@contextmanager
def launching(folder: Path) -> Iterator:
    """Yield a function: `launch(source, world_size)` is a launch of a project whose train.py is `source`.

    At the end of the block no process of these launches may be left.
    """
    folders: list[str] = []

    def launch(source: str, world_size: int = 1, **fields) -> dict:
        run = folder / f"run{len(folders)}"
        project = run / "project"
        project.mkdir(parents=True)
        (project / "train.py").write_text(textwrap.dedent(source))
        folders.append(str(run))
        return {"project": str(project), "folder": str(run), "world_size": world_size, **fields}

    yield launch
    assert [process.cmdline() for run in folders for process in processes_of(run)] == []


def processes_of(folder: str) -> list[psutil.Process]:
    """Return the processes that a run in `folder` has started; a forked one that did nothing more shows no variable."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.status() != psutil.STATUS_ZOMBIE and process.environ().get("FOLDER") == folder:
                found.append(process)
        except psutil.Error:
            continue
    return found


def log(launch: dict, rank: int = 0) -> str:
    return Path(launch["folder"], f"rank{rank}.log").read_text()


def wait_until(condition) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
