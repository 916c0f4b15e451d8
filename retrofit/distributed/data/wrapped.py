"""DataLoaders inside the objects that hand on their batches: prefetchers, progress bars, classes of the script."""

from __future__ import annotations

from collections.abc import Iterator
from types import GeneratorType
from typing import Any

from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

MOST_WRAPPERS = 4  # around one DataLoader


def wrapped_loaders(wrapper: Any) -> list[tuple[Any, str]]:
    """Return where `wrapper` holds its one DataLoader, if any; TypeError for no batches, several, or one begun."""
    places = loader_places(wrapper)
    for holder in _holders(wrapper):
        require_not_started(holder, (_BaseDataLoaderIter, GeneratorType) if places else (_BaseDataLoaderIter,))
    kind, loaders = type(wrapper).__name__, {id(getattr(*place)) for place in places}
    gives_batches = hasattr(type(wrapper), "__iter__") or hasattr(type(wrapper), "__next__")
    if len(loaders) == 1 or (not loaders and gives_batches):
        return places
    has = "more than one DataLoader" if loaders else "no DataLoader, and cannot be iterated"
    raise TypeError(
        f"cannot shard an object of type {kind}: it holds {has}, and every rank would train on all its batches; give "
        "distribute_loader the DataLoader that it draws from, where that is made"
    )


def require_not_started(loader: Any, kinds: tuple[type, ...] = (_BaseDataLoaderIter, GeneratorType)) -> None:
    """Raise TypeError where an object holds an iterator that was made of its DataLoader, or as one, before."""
    for name, value in getattr(loader, "__dict__", {}).items():
        if name != "_iterator" and isinstance(value, kinds):
            raise TypeError(
                f"cannot shard the DataLoader in an object of type {type(loader).__name__}: its attribute {name!r} is "
                "an iterator that was made before; give distribute_loader the DataLoader first, where that is made"
            )


def loader_places(wrapper: Any) -> list[tuple[Any, str]]:
    """Return the objects and the names of their attributes that hold a DataLoader, of an object that wraps some."""
    return [(at, name) for at in _holders(wrapper) for name, value in vars(at).items() if isinstance(value, DataLoader)]


def _holders(wrapper: Any, depth: int = MOST_WRAPPERS) -> Iterator[Any]:
    """Yield an object and the iterables in its attributes, and in theirs, that can hold a DataLoader."""
    if not hasattr(wrapper, "__dict__"):
        return
    yield wrapper
    for value in list(vars(wrapper).values()):
        if not isinstance(value, DataLoader) and depth and hasattr(type(value), "__iter__"):
            yield from _holders(value, depth - 1)
