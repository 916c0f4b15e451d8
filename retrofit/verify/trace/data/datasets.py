"""Names for datasets and samples that are the same in every process and every run."""

from __future__ import annotations

import sys
from itertools import islice
from typing import Any

from torch.utils.data import IterableDataset, Subset

MOST_COMPARED = 1000  # samples or batches of an order
MOST_MEMBERS = 200_000
Lines = tuple[tuple[str, int], ...]


class DatasetNames:
    """Gives every dataset of a process a key: its type, its length, and how many like it came before.

    Scripts build their datasets in the same order on every rank, so the keys agree. A Subset counts as the dataset
    it is taken from: its samples are named by their index there. A dataset that is built again at the same lines of
    the script, after the one before was read, is that one: a loader for each epoch.
    """

    def __init__(self) -> None:
        self._known: list[tuple[Any, str]] = []
        self._lines: dict[int, Lines] = {}  # of the loader that was built last, by the id of its dataset
        self._read: dict[Any, str] = {}  # the key of the dataset that was read last, by lines and kind

    def note(self, dataset: Any, lines: Lines) -> None:
        """A loader for `dataset` is built by these lines of the script."""
        self._lines.setdefault(id(dataset), lines)

    def key(self, dataset: Any) -> str:
        """Return the key of a dataset that is read now."""
        known = next((key for known, key in self._known if known is dataset), None)
        return known or self._new_key(dataset)

    def _new_key(self, dataset: Any) -> str:
        base = base_dataset(dataset)
        length = length_of(base)
        kind = f"{type(base).__name__}:{'-' if length is None else length}"
        lines = self._lines.pop(id(dataset), None)
        place = None if lines is None else (lines, kind, tuple(members(dataset) or ()))
        key = self._read.get(place) if place else None
        if key is None:
            key = f"{kind}:{len({key for _, key in self._known if key.rpartition(':')[0] == kind})}"
        else:  # the one before is not read any more
            self._known = [pair for pair in self._known if pair[1] != key]
        self._known.append((dataset, key))
        if place:
            self._read[place] = key
        return key


def script_lines(project: str) -> Lines:
    """Return the lines of the project that are being run, as (file, line), the innermost first."""
    found, frame = [], sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename.startswith(project):
            found.append((frame.f_code.co_filename, frame.f_lineno))
        frame = frame.f_back  # type: ignore[assignment]
    return tuple(found)


def base_dataset(dataset: Any) -> Any:
    while isinstance(dataset, Subset):
        dataset = dataset.dataset
    return dataset


def length_of(dataset: Any) -> int | None:
    if isinstance(dataset, IterableDataset):
        return None
    try:
        return len(dataset)
    except Exception:  # a TypeError or NotImplementedError: it has none
        return None


def sample_name(dataset: Any, index: Any) -> Any:
    """Return the index in the dataset that a Subset (of a Subset ...) is taken from, as a plain value."""
    while isinstance(dataset, Subset):
        index, dataset = dataset.indices[index], dataset.dataset
    if isinstance(index, (list, tuple)):
        return [sample_name(dataset, part) for part in index]
    return int(index) if hasattr(index, "__index__") else str(index)


def members(dataset: Any) -> list[Any] | None:
    """Return which samples of its base dataset a Subset holds; None for any other dataset or too many."""
    if not isinstance(dataset, Subset) or len(dataset) > MOST_MEMBERS:
        return None
    return [sample_name(dataset, index) for index in range(len(dataset))]


def probe_indices(dataset: Any) -> list[int]:
    """Return the first, the middle and the last index."""
    length = length_of(dataset)
    return sorted({0, length // 2, length - 1}) if length else []


def sampler_names(loader: Any) -> list[str]:
    """Return the class names of a loader's samplers, from the batch sampler inwards."""
    names: list[str] = []
    sampler = _inner_sampler(loader)
    while sampler is not None and len(names) < 10:
        names.append(type(sampler).__name__)
        sampler = _inner_sampler(sampler)
    return names


def follows_epoch(loader: Any, epoch: int) -> bool:
    """Return whether a sampler of the script's own has another order once it is told the number of an epoch.

    Changes the sampler and random states: for a process of its own.
    """
    sampler = _inner_sampler(loader)
    while sampler is not None:
        if hasattr(sampler, "set_epoch"):
            before = list(islice(sampler, MOST_COMPARED))
            repeated = list(islice(sampler, MOST_COMPARED))
            sampler.set_epoch(epoch)
            return before == repeated != list(islice(sampler, MOST_COMPARED))
        sampler = _inner_sampler(sampler)
    return False


def _inner_sampler(outer: Any) -> Any:
    inner = getattr(outer, "batch_sampler", None)
    return getattr(outer, "sampler", None) if inner is None else inner
