"""Random streams that the script's own start of a loader worker leaves."""

from __future__ import annotations

import functools
import random
import sys
from collections.abc import Callable

import torch
from torch.utils.data import DataLoader
from torch.utils.data._utils import worker as torch_worker

from retrofit.verify.trace.randomness.streams import stream_hashes

from .fork import in_a_fork

MOST_WORKERS = 2  # that are looked at
LIMIT_S = 10.0


def worker_streams(
    loader: DataLoader, base_seed: int, num_workers: int, silence: Callable[[], None]
) -> list[dict[str, str]]:
    """Return the streams that `worker_init_fn` gives the first workers; empty where it fails.

    Each is called in a process of its own, as by torch, so that it changes nothing here. `silence()` stops the record
    of what happens there.
    """
    found = []
    for worker in range(min(num_workers, MOST_WORKERS)):
        answer = in_a_fork(functools.partial(_start, loader, base_seed, worker, num_workers), silence, LIMIT_S)
        if answer is None:
            return []
        found.append(answer)
    return found


def _start(loader: DataLoader, base_seed: int, worker: int, num_workers: int) -> dict[str, str]:
    """Be a worker, as `torch.utils.data._utils.worker._worker_loop` begins."""
    random.seed(base_seed + worker)
    torch.manual_seed(base_seed + worker)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(torch_worker._generate_state(base_seed, worker))
    info = torch_worker.WorkerInfo(id=worker, num_workers=num_workers, seed=base_seed + worker, dataset=loader.dataset)
    torch_worker._worker_info = info
    loader.worker_init_fn(worker)  # type: ignore[misc]
    return stream_hashes()
