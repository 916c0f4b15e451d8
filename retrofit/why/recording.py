"""The recording of one process: its instruments, and what is known about it."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from retrofit.why.instruments.buckets import watch_buckets
from retrofit.why.instruments.collectives import watch_collectives
from retrofit.why.instruments.loaders import watch_loaders
from retrofit.why.instruments.stalls import watch_stalls
from retrofit.why.instruments.training import watch_training
from retrofit.why.marks import MOMENT, Marks

QUEUE = "waited for a core"  # seconds so far, as the kernel counts them
SCHEDSTAT = "/proc/thread-self/schedstat"  # ns on a core, ns in the queue of a core, number of turns


class Recording:
    """The marks of this process from `begin` on, and the file that they are written to."""

    def __init__(self) -> None:
        self.marks = Marks()
        self.facts: dict[str, Any] = {}
        self.rank = int(os.environ.get("RANK", 0))
        self._queue = _open_queue()

    def begin(self, on_step: Callable[[], None]) -> None:
        """Switch the instruments on, before models and loaders are made; `on_step` is called after optimizer steps."""

        def stepped() -> None:
            if self._queue is not None and self.marks.is_on:
                waited = int(os.pread(self._queue, 100, 0).split()[1]) / 1e9
                self.marks.add(MOMENT, QUEUE, waited)
            on_step()

        watch_loaders(self.marks, self.facts)
        watch_training(self.marks, stepped)
        watch_buckets(self.marks, self.facts)
        watch_collectives(self.marks, self.facts)
        watch_stalls(self.marks)

    def write(self, folder: Path) -> None:
        """End the recording and write the marks of this rank to `folder`, which is made. Waits for a GPU's queue."""
        self.marks.settle()
        self.facts.update(
            rank=self.rank,
            world_size=int(os.environ.get("WORLD_SIZE", 1)),
            host=socket.gethostname(),
            num_threads=torch.get_num_threads(),
            cores=sorted(os.sched_getaffinity(0))
            if hasattr(os, "sched_getaffinity")
            else list(range(os.cpu_count() or 1)),
            is_cuda=torch.cuda.is_available(),
        )
        self.marks.write(folder / f"rank{self.rank}.json", self.facts)


def _open_queue() -> int | None:
    try:
        return os.open(SCHEDSTAT, os.O_RDONLY)
    except OSError:
        return None
