"""Batches of libraries: rows gathered for a metric, batches sent from one rank to the others, counted passes."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from retrofit.verify.trace.after_import import after_import
from retrofit.verify.trace.events import CountedPass, DispatchedBatches, Event, MetricRows, Record

# Functions that leave out of what they gather the samples by which a library has filled up the last batch.
GATHERING = {"accelerate.accelerator": ("Accelerator", "gather_for_metrics")}
# Loaders that draw the batches of all ranks on rank 0, or count their passes. A pass over them is an `__iter__`.
PASSES: dict[str, tuple[str, Event]] = {
    "accelerate.data_loader": ("DataLoaderDispatcher", DispatchedBatches()),
    "lightning_fabric.wrappers": ("_FabricDataLoader", CountedPass()),
    "lightning.fabric.wrappers": ("_FabricDataLoader", CountedPass()),
}


def install_gathered(record: Record) -> None:
    """Record MetricRows for each call of a function of GATHERING, and the event of a pass over a loader of PASSES."""
    for name, (loader, event) in PASSES.items():
        after_import(name, functools.partial(_watch_passes, record, loader, event))
    for name, (owner, function) in GATHERING.items():
        after_import(name, functools.partial(_watch, record, owner, function))


def _watch(record: Record, owner: str, function: str, module: ModuleType) -> None:
    watched = getattr(module, owner)
    gather: Callable[..., Any] = getattr(watched, function)

    @functools.wraps(gather)
    def traced(*args: Any, **kwargs: Any) -> Any:
        gathered = gather(*args, **kwargs)
        rows = _num_rows(gathered)
        if rows is not None:
            record(MetricRows(rows))
        return gathered

    setattr(watched, function, traced)


def _watch_passes(record: Record, loader: str, event: Event, module: ModuleType) -> None:
    watched = getattr(module, loader)
    iterate: Callable[..., Any] = watched.__iter__

    @functools.wraps(iterate)
    def traced(*args: Any) -> Any:
        record(copy.copy(event))
        return iterate(*args)

    watched.__iter__ = traced


def _num_rows(gathered: Any) -> int | None:
    """Return the length of the first tensor, or of a list of objects."""
    if isinstance(gathered, Mapping):
        gathered = list(gathered.values())
    if hasattr(gathered, "shape"):
        return int(gathered.shape[0]) if gathered.shape else None
    if not isinstance(gathered, (list, tuple)) or not gathered:
        return None
    inner = _num_rows(gathered[0])
    return len(gathered) if inner is None else inner
