"""The base of all events of a trace, and the types of their fields."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import cache
from typing import Any, Union

Fingerprint = list[float]  # of a tensor: its 2-norm, and its product with a fixed vector of random signs
Sample = Any  # the index in its dataset, a list of such, or the hash of the content of a stream's item
Place = tuple[str, int, int]  # of a pass over a dataset: `dataset`, `epoch` and `repeat` of its IterationStart
RANDOM_STATE = "random state "  # how a saved value begins that is one; a hash follows
OWN_BATCHES = "own batches"  # in place of the type of a dataset: no DataLoader gives these
Value = Union[None, bool, int, float, str, list[float]]  # a number, a text, or the Fingerprint of a tensor
Values = dict[str, Value]  # by name; None where there is nothing to compare
OF_DATASET = "dataset"  # the stream of generators that a dataset holds and draws from
Keys = dict[str, str]  # content of a file by flat name: {"model/fc.weight": "float32[3, 3]", "epoch": "int"}


class Event:
    """What happened at one moment. The recorder adds when."""

    seconds: float = 0.0  # since the process began to record
    step: int = 0  # optimizer steps finished before

    @classmethod
    def restored(cls, fields: dict[str, Any]) -> Event:
        """Return the event with these fields, of a line. Raises ValueError if they are not those of the class."""
        known = _fields_of(cls)  # type: ignore[arg-type]  # classes are hashable
        if fields.keys() != known:
            names = sorted(fields.keys() ^ known)
            raise ValueError(f"a {cls.__name__} has other fields: {', '.join(names)}")
        event = object.__new__(cls)
        event.__dict__.update(fields)  # __init__ of a frozen class takes twice the time, for 100,000 events
        return event


@cache
def _fields_of(kind: Any) -> set[str]:
    return {field.name for field in dataclasses.fields(kind)} | {"seconds", "step"}


Record = Callable[[Event], None]


def is_own_batches(dataset: str) -> bool:
    """Return whether the `dataset` of an IterationStart means batches that no DataLoader gives."""
    return dataset.startswith(f"{OWN_BATCHES}:")
