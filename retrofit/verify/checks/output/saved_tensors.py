"""Tensors that rank 0 saves next to the states of its objects (a confusion matrix, features), against one process's."""

from __future__ import annotations

from collections.abc import Iterator

from retrofit.verify.checks.checkpoint.saved_files import saves
from retrofit.verify.checks.finding import Finding
from retrofit.verify.evidence import Run
from retrofit.verify.trace.events import Fingerprint, Value

ALLOWED = 1e-4  # relative to the norm


def tensor_fault(many: Run, reference: Run) -> Finding | None:
    """Return the first of these tensors that is not that of one process.

    Looked at are the first names in a file ("confusion"), not what is within the state of a model or an optimizer:
    weights are compared by themselves, and are the same.
    """
    ours, theirs = saves(many.main, -1), saves(reference.main, -1)
    for place in sorted(ours.keys() & theirs.keys(), key=lambda place: place[1]):
        for name, own, other in _tensors(ours[place].values, theirs[place].values):
            if ours[place].keys.get(name) == theirs[place].keys.get(name) and _differ(own, other):
                summary = f"{name!r} in {place[0]} is of rank 0's share only, or averaged otherwise"
                value = f"norm {own[0]:.6g} with {many.world_size} processes, {other[0]:.6g} with 1"
                return Finding(summary, "RF401", max(place[1] - 2, 0), value)
    return None


def _tensors(ours: dict[str, Value], theirs: dict[str, Value]) -> Iterator[tuple[str, Fingerprint, Fingerprint]]:
    for name, own in ours.items():
        other = theirs.get(name)
        if name and not {"/", "."} & set(name) and isinstance(own, (list, tuple)) and isinstance(other, (list, tuple)):
            yield name, own, other


def _differ(own: Fingerprint, other: Fingerprint) -> bool:
    scale = max(abs(own[0]), abs(other[0]))
    return any(abs(a - b) > ALLOWED * scale for a, b in zip(own, other))
