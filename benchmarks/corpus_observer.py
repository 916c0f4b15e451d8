"""Run a training script as `python SCRIPT` would, and note which samples each step used and which files it wrote.

  OBSERVED=LOG python benchmarks/corpus_observer.py SCRIPT [ARGUMENT ...]

Writes one JSON object per line to LOG.rank<RANK>: {"ev": "backward", "n": length of the dataset, "idx": [sample, ...]}
per backward call, with the last batch that was fetched since the one before (null where there was none), and
{"ev": "save", "path": ...} for each file that torch.save, torch.jit.save or cv2.imwrite writes, which open it in
compiled code. Needs num_workers=0 for the samples.

  BATCH_FACTOR=W     the loaders of datasets with one of the lengths in TRAINING_LENGTHS have W times the batch size
  ODD_EVALUATION=1   loaders in a fixed order have a number of batches that divides neither by 2 nor by 3
"""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO


def main() -> None:
    script = sys.argv[1]
    sys.argv[:] = sys.argv[1:]
    sys.path[0] = str(Path(script).resolve().parent)
    with open(f"{os.environ['OBSERVED']}.rank{os.environ.get('RANK', '0')}", "w", buffering=1) as log:
        observe_samples(log)
        observe_saves(log)
        lengths = {int(length) for length in os.environ.get("TRAINING_LENGTHS", "").split()}
        factor = int(os.environ.get("BATCH_FACTOR", "1"))
        change_loaders(dict.fromkeys(lengths, factor), bool(os.environ.get("ODD_EVALUATION")))
        runpy.run_path(script, run_name="__main__")


def observe_samples(log: TextIO) -> None:
    """Note with each backward call the batch that it learns from, not those of a pass over the data before it."""
    import torch
    from torch.utils.data._utils.fetch import _MapDatasetFetcher

    fetch, backward = _MapDatasetFetcher.fetch, torch.Tensor.backward
    last: dict[str, Any] = {}

    def noted_fetch(self: Any, indices: Any) -> Any:
        if isinstance(indices, (list, tuple)):
            last.update(n=len(self.dataset), idx=[_plain(index) for index in indices])
        return fetch(self, indices)

    def noted_backward(self: Any, *args: Any, **kwargs: Any) -> Any:
        log.write(json.dumps({"ev": "backward", "n": last.get("n"), "idx": last.get("idx")}) + "\n")
        last.clear()
        return backward(self, *args, **kwargs)

    _MapDatasetFetcher.fetch = noted_fetch  # type: ignore[method-assign]
    torch.Tensor.backward = noted_backward  # type: ignore[method-assign]


def _plain(index: Any) -> Any:
    return int(index) if hasattr(index, "__index__") else str(index)


def observe_saves(log: TextIO) -> None:
    """Note the files that compiled code writes: the interpreter raises no event for them."""
    import torch

    def noted(write: Callable[..., Any], position: int, name: str) -> Callable[..., Any]:
        @functools.wraps(write)
        def saves(*args: Any, **kwargs: Any) -> Any:
            path = args[position] if len(args) > position else kwargs.get(name)
            if isinstance(path, (str, os.PathLike)):
                log.write(json.dumps({"ev": "save", "path": os.path.abspath(path)}) + "\n")
            return write(*args, **kwargs)

        return saves

    torch.save = noted(torch.save, 1, "f")
    torch.jit.save = noted(torch.jit.save, 1, "f")
    if importlib.util.find_spec("cv2") is not None:
        import cv2

        cv2.imwrite = noted(cv2.imwrite, 0, "filename")


def change_loaders(factors: dict[int, int], odd: bool) -> None:
    """Have every DataLoader made over fewer samples (evaluation), or with a batch `factors[len(dataset)]` as large."""
    from torch.utils.data import DataLoader

    initialise = DataLoader.__init__

    @functools.wraps(initialise)
    def changed(self: Any, dataset: Any, batch_size: Any = 1, shuffle: Any = None, *args: Any, **kwargs: Any) -> None:
        in_order = not shuffle and not args and not {"sampler", "batch_sampler"} & set(kwargs)
        if in_order and odd and batch_size and hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__"):
            shorten(dataset, int(batch_size))
        if batch_size and hasattr(dataset, "__len__"):
            batch_size *= factors.get(len(dataset), 1)
        initialise(self, dataset, batch_size, shuffle, *args, **kwargs)

    DataLoader.__init__ = changed  # type: ignore[method-assign]


def shorten(dataset: Any, batch_size: int) -> None:
    """Let `dataset` say, from its first loader on, that it is some batches shorter: ranks get unequal numbers."""
    if hasattr(dataset, "_is_shortened"):
        return
    length = len(dataset)
    batches = -(-length // batch_size)
    while batches > 1 and (batches % 2 == 0 or batches % 3 == 0):
        batches -= 1
    wanted = min(length, batches * batch_size)
    kind = type(dataset)
    if wanted < length and kind.__flags__ & (1 << 9):  # of a class written in Python: lists keep their length
        changes = {"__len__": lambda self: wanted, "__module__": kind.__module__, "_is_shortened": True}
        dataset.__class__ = type(kind.__name__, (kind,), changes)


if __name__ == "__main__":
    main()
