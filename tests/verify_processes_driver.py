"""A fresh process that forks runs for a test: it has imported torch and has run nothing.

Reads one request per line from standard input, answers with one JSON line each on standard output:
{"launches": [{"project", "folder", "script", "world_size", ...}], "options": {...}} -> {"results": [...], ...}
"""

from __future__ import annotations

import atexit
import json
import os
import runpy
import signal
import sys
import tempfile
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.distributed  # once, here, instead of in every rank

from retrofit.verify.processes.launch import Launch, run_together


@dataclass
class Settings:
    folder: str
    project: str
    rank: int
    world_size: int


def run_script(settings, script, argv):
    """Stands for run_traced: scripts of tests write `rank{r}.jsonl` themselves."""
    os.environ["FOLDER"] = settings.folder
    runpy.run_path(script, run_name="__main__")


def launch_of(request):
    project, folder, world_size = request.pop("project"), request.pop("folder"), request.pop("world_size", 1)
    settings = [Settings(folder, project, rank, world_size) for rank in range(world_size)]
    return Launch(settings, request.pop("script", "train.py"), target=run_script, **request)


def answer(request):
    calls = []

    def on_progress():
        calls.append(time.monotonic())
        if request.get("progress_fails"):
            raise ValueError("on_progress fails")

    reply = {"results": None, "error": None}
    os.environ.update(request.get("caller_environ", {}))
    try:
        launches = [launch_of(launch) for launch in request["launches"]]
        results = run_together(launches, on_progress=on_progress, **request["options"])
        reply["results"] = [asdict(result) for result in results]
    except Exception as error:
        reply["error"] = f"{type(error).__name__}: {error}"
    for name in request.get("caller_environ", {}):
        del os.environ[name]
    return {**reply, "progress": calls, "threads": threading.active_count(), "torch_seed": torch.initial_seed()}


if __name__ == "__main__":
    # What a parent leaves to its own end, and a child has to leave alone.
    folder = Path(sys.argv[1])
    parents_folder = tempfile.TemporaryDirectory(dir=folder, prefix="parents_folder_")
    buffered = open(folder / "buffered.txt", "w")  # noqa: SIM115  written by the interpreter's end
    buffered.write("once")
    atexit.register((folder / "end_of_the_driver").touch)
    signal.signal(signal.SIGUSR2, lambda *_: None)
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), flush=True)
