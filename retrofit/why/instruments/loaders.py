"""Batches: waiting for the loader, and making a batch of its samples."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping
from typing import Any

import torch
from torch.utils.data import _utils, dataloader, get_worker_info

from retrofit.why.marks import BEGIN, END, Marks

DATA, COLLATE = "data ", "collate"  # DATA: before the number of the pass
OVER = -1.0  # in place of a number of samples: the pass has no further batch
_NAME = "_retrofit_why_name"


def watch_loaders(marks: Marks, facts: dict[str, Any]) -> None:
    """Mark each wait for a batch of a DataLoader, with the number of its samples, and what `collate_fn` takes of it."""
    kind = dataloader._BaseDataLoaderIter
    original = kind.__next__
    passes = itertools.count()

    @functools.wraps(original)
    def draw(self: Any) -> Any:
        name = self.__dict__.get(_NAME) or self.__dict__.setdefault(_NAME, f"{DATA}{next(passes)}")
        marks.add(BEGIN, name)
        samples = OVER
        try:
            batch = original(self)
            samples = float(_num_samples(batch))
            return batch
        finally:
            marks.add(END, name, samples)

    kind.__next__ = draw  # type: ignore[method-assign]
    _watch_collate(marks)
    _note_workers(facts)


def _watch_collate(marks: Marks) -> None:
    """Without workers a batch is made in the step's own thread."""
    kind = _utils.fetch._BaseDatasetFetcher
    original = kind.__init__

    @functools.wraps(original)
    def begin(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        collate = self.collate_fn
        if get_worker_info() is None and callable(collate):

            def collated(samples: Any) -> Any:
                with marks.during(COLLATE):
                    return collate(samples)

            self.collate_fn = collated

    kind.__init__ = begin  # type: ignore[method-assign]


def _note_workers(facts: dict[str, Any]) -> None:
    original = dataloader.DataLoader.__iter__

    @functools.wraps(original)
    def iterate(self: Any) -> Any:
        facts["num_workers"] = max(int(self.num_workers), facts.get("num_workers", 0))
        return original(self)

    dataloader.DataLoader.__iter__ = iterate  # type: ignore[method-assign]


def _num_samples(batch: Any) -> int:
    """Return the length of the first tensor in a batch, 0 where there is none."""
    if isinstance(batch, torch.Tensor):
        return len(batch) if batch.dim() else 1
    parts = batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, (list, tuple)) else ()
    return next((number for number in map(_num_samples, parts) if number), 0)
