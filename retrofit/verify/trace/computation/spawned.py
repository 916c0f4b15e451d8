"""Scripts that start their own processes with torch.multiprocessing.spawn: the run's processes take their place.

Rank 0 runs the script, and instead of starting processes it calls their function as rank 0. Before, it leaves the call
in a file, from which the other ranks take it: like processes that are started, they have the variables, the folder and
the arguments of the one that starts them, import the script as a module and call the function with their rank.
"""

from __future__ import annotations

import gc
import io
import os
import pickle
import runpy
import sys
import time
import types
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing

from retrofit.verify.trace.computation.operators import untraced
from retrofit.verify.trace.events import Record, SpawnCall
from retrofit.verify.trace.filesystem.own_work import own_work
from retrofit.verify.trace.settings import TraceSettings

CALLS = "spawned"  # a folder of the run: one file for each call of mp.spawn
ENDED = "ended"  # a file in it: rank 0 makes no further call
MAIN = "__mp_main__"  # what multiprocessing calls the script's module in a process that it starts
POLL_S = 0.01
HASH_SEED = "PYTHONHASHSEED"


class SpawnedRanks:
    """What one process of a run does for a script that starts its own."""

    def __init__(
        self,
        record: Record,
        settings: TraceSettings,
        place: Callable[[], str | None],
        forget_models: Callable[[], None],
    ) -> None:
        self._record, self._settings, self._place, self._forget_models = record, settings, place, forget_models
        self._folder = Path(settings.folder, CALLS)
        self._num_calls = count()

    def install(self) -> None:
        """Replace the functions that start processes; the number of GPUs is that of the ranks, until they start."""

        def spawn(
            fn: Any, args: Any = (), nprocs: int = 1, join: Any = True, daemon: Any = False, start_method: str = "spawn"
        ) -> Joined | None:
            return self._call(fn, tuple(args), nprocs, start_method, join)

        def start_processes(
            fn: Any,
            args: Any = (),
            nprocs: int = 1,
            join: Any = True,
            daemon: Any = False,
            start_method: str = "spawn",
            *others: Any,
            **more: Any,
        ) -> Joined | None:
            return self._call(fn, tuple(args), nprocs, start_method, join)

        for module in (torch.multiprocessing, sys.modules["torch.multiprocessing.spawn"]):
            module.spawn, module.start_processes = spawn, start_processes  # type: ignore[attr-defined]
        self._count_gpus = torch.cuda.device_count
        if self._settings.spawns and not torch.cuda.is_available():
            torch.cuda.device_count = lambda: self._settings.world_size

    def _call(self, fn: Any, args: tuple, nprocs: int, start_method: str, join: bool) -> Joined | None:
        """Call the function of the script's processes as rank 0, and leave it to the others to do the same."""
        problem = None
        self._end_call()
        if self._settings.spawns and nprocs == self._settings.world_size > 1:
            problem = self._leave_for_others(fn, args, start_method)
        self._record(SpawnCall(nprocs, self._place(), problem))
        if not self._settings.spawns or nprocs != self._settings.world_size or problem is not None:
            raise SystemExit(0)  # nothing of it can be compared
        self._begin()
        fn(0, *args)
        return None if join else Joined()

    def _begin(self) -> None:
        torch.cuda.device_count = self._count_gpus

    def _end_call(self) -> None:
        """Leave nothing of an earlier call: its store would answer the other ranks at the same port."""
        self._forget_models()
        gc.collect()

    def _leave_for_others(self, fn: Any, args: tuple, start_method: str) -> str | None:
        """Write the call to its file. Returns why that cannot be done, None otherwise."""
        if start_method == "fork":
            return "they are forked"
        try:
            with untraced():
                call = pickle.dumps(_inherited()) + pickle.dumps((fn, args))
        except Exception as error:  # a queue or a lock, which only a process that starts another one can hand on
            return f"what they are given cannot be copied ({error})"
        self._write(f"{next(self._num_calls)}.pickle", call)
        return None

    def end(self) -> None:
        """Tell the other ranks that rank 0 has come to the end of the script."""
        if self._settings.spawns and self._settings.rank == 0:
            self._write(ENDED, b"")

    def _write(self, name: str, content: bytes) -> None:
        with own_work():
            self._folder.mkdir(exist_ok=True)
            temporary = self._folder / f"{name}.tmp"
            temporary.write_bytes(content)
            os.replace(temporary, self._folder / name)

    def serve(self, path: str) -> None:
        """Make the calls of a rank other than 0 until rank 0 has ended. `path`: of the script."""
        for number in count():
            call = self._next_call(self._folder / f"{number}.pickle")
            if call is None:
                return
            with untraced():
                _inherit(*pickle.load(call))
            if number == 0:
                self._import_script(path)
            with untraced():
                fn, args = pickle.load(call)
            self._begin()
            fn(self._settings.rank, *args)
            del fn, args
            self._end_call()

    def _next_call(self, path: Path) -> io.BytesIO | None:
        while not path.exists():
            if (self._folder / ENDED).exists() and not path.exists():
                return None
            time.sleep(POLL_S)
        return io.BytesIO(path.read_bytes())

    def _import_script(self, path: str) -> None:
        """Run the script as a module that is not the main one, as multiprocessing does in a process that it starts."""
        module = self._settings.module
        content = (
            runpy.run_module(module, run_name=MAIN, alter_sys=True) if module else runpy.run_path(path, None, MAIN)
        )
        main = types.ModuleType(MAIN)
        main.__dict__.update(content)
        sys.modules["__main__"] = sys.modules[MAIN] = main


def _inherited() -> tuple[dict[str, str], str, list[str], list[str]]:
    """Return what a process that is started now has of this one: variables, folder, arguments and import path."""
    return dict(os.environ), os.getcwd(), sys.argv, sys.path


def _inherit(environ: dict[str, str], folder: str, arguments: list[str], path: list[str]) -> None:
    """Have what rank 0 had when it started the processes. A hash seed is that of this process."""
    own = os.environ.get(HASH_SEED)
    os.environ.clear()
    os.environ.update({name: value for name, value in environ.items() if name != HASH_SEED})
    if own is not None:
        os.environ[HASH_SEED] = own
    os.chdir(folder)
    sys.argv[:], sys.path[:] = arguments, path


class Joined:
    """Processes that have ended: what mp.spawn(..., join=False) returns."""

    processes: tuple[()] = ()

    def join(self, timeout: float | None = None, grace_period: float | None = None) -> bool:
        return True

    def pids(self) -> list[int]:
        return []
