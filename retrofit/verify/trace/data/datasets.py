"""Names for datasets and samples that are the same in every process and every run."""

from __future__ import annotations

from typing import Any

from torch.utils.data import IterableDataset, Subset

MOST_MEMBERS = 200_000


class DatasetNames:
    """Gives every dataset object of a process a key: its type, its length, and how many like it came before.

    Scripts build their datasets in the same order on every rank, so the keys agree. A Subset counts as the dataset
    it is taken from: its samples are named by their index there.
    """

    def __init__(self) -> None:
        self._known: list[tuple[Any, str]] = []

    def key(self, dataset: Any) -> str:
        for known, key in self._known:
            if known is dataset:
                return key
        base = base_dataset(dataset)
        length = length_of(base)
        kind = f"{type(base).__name__}:{'-' if length is None else length}"
        ordinal = sum(key.rpartition(":")[0] == kind for _, key in self._known)
        self._known.append((dataset, f"{kind}:{ordinal}"))
        return self._known[-1][1]


def base_dataset(dataset: Any) -> Any:
    while isinstance(dataset, Subset):
        dataset = dataset.dataset
    return dataset


def length_of(dataset: Any) -> int | None:
    if isinstance(dataset, IterableDataset):
        return None
    try:
        return len(dataset)
    except TypeError:
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


def _inner_sampler(outer: Any) -> Any:
    inner = getattr(outer, "batch_sampler", None)
    return getattr(outer, "sampler", None) if inner is None else inner
