"""DataLoaders: how long a worker needs for a batch, and how many batches a pass over the training data has."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from torch.utils.data import DataLoader, _utils, get_worker_info

FILE = "batches_of_workers.txt"


def watch_workers(folder: Path) -> None:
    """Let each worker that this process forks write a line to a file in `folder` for each batch."""
    for kind in (_utils.fetch._MapDatasetFetcher, _utils.fetch._IterableDatasetFetcher):
        kind.fetch = _measured(kind.fetch, folder / FILE)  # type: ignore[method-assign]


def watch_epoch(facts: dict[str, Any], is_before_training: Callable[[], bool]) -> None:
    """Note as `batches_per_epoch` the length of the last loader that is gone through before the first step."""
    original = DataLoader.__iter__

    @functools.wraps(original)
    def iterate(self: Any) -> Any:
        if is_before_training():
            try:
                facts["batches_per_epoch"] = len(self)
            except TypeError:  # a stream
                facts.pop("batches_per_epoch", None)
        return original(self)

    DataLoader.__iter__ = iterate  # type: ignore[method-assign]


def seconds_of_batch(folder: Path) -> float | None:
    """Return the median of what the workers wrote to `folder`; None where there was none."""
    path = folder / FILE
    lines = path.read_text().split() if path.is_file() else []
    return median(map(float, lines)) if lines else None


def _measured(fetch: Any, path: Path) -> Any:
    @functools.wraps(fetch)
    def measured(self: Any, *args: Any) -> Any:
        if get_worker_info() is None:
            return fetch(self, *args)
        begin = time.perf_counter()
        try:
            return fetch(self, *args)
        finally:
            with path.open("a") as file:  # short lines of several processes do not mix
                file.write(f"{time.perf_counter() - begin:.6f}\n")

    return measured
