"""DataLoaders inside the objects that hand on their batches: prefetchers, progress bars, classes of the script."""

from __future__ import annotations

from collections.abc import Iterator
from types import GeneratorType
from typing import Any

from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

MOST_WRAPPERS = 4  # around one DataLoader


def wrapped_loaders(wrapper: Any) -> list[tuple[Any, str]]:
    """Return the objects and the names of their attributes that hold the one DataLoader inside `wrapper`.

    Raises TypeError where there is none, or more than one, or where an iterator of it has been made already.
    """
    places = list(_places(wrapper, MOST_WRAPPERS))
    kind, loaders = type(wrapper).__name__, {id(getattr(*place)) for place in places}
    if len(loaders) == 1:
        return places
    has = "more than one DataLoader" if loaders else "no DataLoader"
    raise TypeError(
        f"cannot shard an object of type {kind}: it holds {has}, and every rank would train on all its batches; give "
        "distribute_loader the DataLoader that it draws from, where that is made"
    )


def require_not_started(loader: Any) -> None:
    """Raise TypeError where an object holds an iterator that was made of its DataLoader, or as one, before."""
    for name, value in getattr(loader, "__dict__", {}).items():
        if name != "_iterator" and isinstance(value, (_BaseDataLoaderIter, GeneratorType)):
            raise TypeError(
                f"cannot shard the DataLoader in an object of type {type(loader).__name__}: its attribute {name!r} is "
                "an iterator that was made before; give distribute_loader the DataLoader first, where that is made"
            )


def _places(wrapper: Any, depth: int) -> Iterator[tuple[Any, str]]:
    require_not_started(wrapper)
    for name, value in list(getattr(wrapper, "__dict__", {}).items()):
        if isinstance(value, DataLoader):
            yield wrapper, name
        elif depth and hasattr(type(value), "__iter__") and hasattr(value, "__dict__"):
            yield from _places(value, depth - 1)
