"""The recording of one process: its instruments, what is known about it, and its end after enough steps."""

from __future__ import annotations

import os
import socket
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from retrofit.why.instruments.buckets import watch_buckets
from retrofit.why.instruments.collectives import watch_collectives
from retrofit.why.instruments.loaders import watch_loaders
from retrofit.why.instruments.stalls import watch_stalls
from retrofit.why.instruments.training import watch_training
from retrofit.why.marks import MOMENT, Marks

QUEUE = "waited for a core"  # seconds so far, as the kernel counts them
SCHEDSTAT = "/proc/thread-self/schedstat"  # ns on a core, ns in the queue of a core, number of turns


class Recording:
    """Marks what a process does until it has made `steps` optimizer steps; 0: until the script ends."""

    def __init__(self, folder: Path, steps: int) -> None:
        self.folder, self.steps = folder, steps
        self.marks = Marks()
        self.facts: dict[str, Any] = {}
        self._made = 0
        self._queue = _open_queue()
        self._is_written = False

    def begin(self) -> None:
        """Switch the instruments on. Call it before the script is run."""
        self.facts["started"] = time.perf_counter()
        watch_loaders(self.marks, self.facts)
        watch_training(self.marks, self._on_step)
        watch_buckets(self.marks, self.facts)
        watch_collectives(self.marks)
        watch_stalls(self.marks)

    def write(self) -> None:
        """Write the marks of this rank, once."""
        if self._is_written:
            return
        self._is_written = True
        rank = int(os.environ.get("RANK", 0))
        self.facts.update(
            rank=rank,
            world_size=int(os.environ.get("WORLD_SIZE", 1)),
            host=socket.gethostname(),
            num_threads=torch.get_num_threads(),
            num_cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
            is_cuda=torch.cuda.is_available(),
        )
        self.folder.mkdir(parents=True, exist_ok=True)
        self.marks.write(self.folder / f"rank{rank}.json", self.facts)

    def _on_step(self) -> None:
        self._made += 1
        if self._queue is not None:
            waited = int(os.pread(self._queue, 100, 0).split()[1]) / 1e9
            self.marks.add(MOMENT, QUEUE, waited)
        if self.steps and self._made >= self.steps:
            self._end()

    def _end(self) -> None:
        """End the process: all ranks come here after the same step."""
        self.write()
        if dist.is_available() and dist.is_initialized():
            dist.barrier()  # no rank leaves while another one still receives
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def _open_queue() -> int | None:
    try:
        return os.open(SCHEDSTAT, os.O_RDONLY)
    except OSError:
        return None
