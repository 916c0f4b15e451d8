"""Random streams of loader workers, which run inside the process while it is traced, and calls in a fork of it."""

from __future__ import annotations

import functools
import json
import os
import random
import select
import signal
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NoReturn, TypeVar

import torch
from torch.utils.data import DataLoader
from torch.utils.data._utils import worker as torch_worker

from retrofit.verify.trace.randomness.streams import stream_hashes

Answer = TypeVar("Answer")  # of what JSON has
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


def in_a_fork(call: Callable[[], Answer], silence: Callable[[], None], limit_s: float) -> Answer | None:
    """Return what a call returns in a process of its own; None where it fails or takes longer.

    `silence()` stops the record of what happens there.
    """
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of a fork with threads: a loader does the same
        pid = os.fork()
    if pid == 0:
        _answer(call, silence, writer)
    os.close(writer)
    with open(reader, "rb") as pipe:
        text = pipe.read() if select.select([pipe], [], [], limit_s)[0] else b""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return json.loads(text) if text else None


def _answer(call: Callable[[], Any], silence: Callable[[], None], writer: int) -> NoReturn:
    try:
        silence()
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.dup2(null, 2)
        os.write(writer, json.dumps(call()).encode())
    finally:
        os._exit(0)
