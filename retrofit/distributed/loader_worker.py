"""Loader workers end when their rank does, also when it was killed.

torch's workers look whether their parent process is still there. Those of a fork server have the server as parent,
which in turn lives as long as they do: they would stay for good, with their memory, after each kill and restart.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Callable
from typing import Any

InitFunction = Callable[[int], Any]


class EndsWithItsRank:
    """A DataLoader's `worker_init_fn` that runs `inner` and lets the worker end with the process that started it."""

    def __init__(self, inner: InitFunction | None) -> None:
        self.inner = inner

    def __call__(self, worker_id: int) -> None:
        rank = multiprocessing.parent_process()
        if rank is not None:
            threading.Thread(target=_end_with, args=(rank,), name="retrofit-rank-watch", daemon=True).start()
        if self.inner is not None:
            self.inner(worker_id)


def own_init_function(worker_init_fn: InitFunction | None) -> InitFunction | None:
    """Return what the user gave as a DataLoader's `worker_init_fn`."""
    return worker_init_fn.inner if isinstance(worker_init_fn, EndsWithItsRank) else worker_init_fn


def _end_with(rank: Any) -> None:
    rank.join()
    os._exit(1)  # the main thread may be anywhere, and nobody reads what it makes
