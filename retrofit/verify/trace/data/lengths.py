"""The lengths of loaders whose epochs are cut: what `len(loader)` says to the script is what it gets.

An epoch is cut after half of the steps that were asked for. A script that takes `len(loader)` for its length (to find
its place after a restart, to plan its learning rates, to read so many batches) would be told another number. Which
loaders are cut, and where, is known only when it happens: a run in which the script asks ends there (`EpochCut`)
and is made again, with the length of the cut epoch as the loader's length from the start. So it is in all other runs.

A loader that is not split across the ranks yet is longer than on one process (`len(loader)` before
`accelerator.prepare(loader)`, of batches for one rank): its cut epoch is longer by that factor.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import DataLoader

from retrofit.verify.trace.events import EpochCut, EpochKept, ProcessExit
from retrofit.verify.trace.recorder import Recorder
from retrofit.verify.trace.settings import TraceSettings

from .datasets import Lines, base_dataset, length_of

SHOWS_ONLY = "tqdm"  # asks for a length to show it
OWN = ("torch", "retrofit.verify")


class Lengths:
    """What is known of the lengths of cut epochs, by loader: the kind of its data and which one of them it is."""

    def __init__(self, recorder: Recorder, settings: TraceSettings, is_evaluating: Callable[[], bool]) -> None:
        self._recorder, self._settings, self._is_evaluating = recorder, settings, is_evaluating
        self._names: list[tuple[Any, str]] = []  # of data sets that have a loader
        self._places: dict[str, list[Lines]] = {}  # where loaders are built, by kind of data
        self._asked: set[str] = set()  # loaders whose length the script has asked for
        self._cut: dict[str, int] = {}  # after how many batches an epoch was cut
        self._wholes: dict[str, int] = {}  # how many batches it has; 0 where that is not known
        self._classes: set[type] = set()
        self._is_inner = False

    def note(self, loader: DataLoader, lines: Lines) -> None:
        """A loader is built by these lines of the script."""
        self._watch(type(loader))
        dataset = loader.dataset
        if self._name(loader) is not None:
            return
        kind = f"{type(base_dataset(dataset)).__name__}:{length_of(base_dataset(dataset))}:{length_of(dataset)}"
        places = self._places.setdefault(kind, [])
        if lines not in places:
            places.append(lines)
        name = f"{kind}:{places.index(lines)}"
        self._names = [pair for pair in self._names if pair[1] != name] + [(dataset, name)]

    def of_epoch(self, loader: DataLoader) -> int | None:
        """Return after how many batches an epoch of training is to end; None where that is not known before.

        0 where it is not to be cut: the script counts its batches by another length.
        """
        known = None if self._evaluates() else self._settings.lengths.get(self._name(loader) or "")
        return None if known is None else known.of(length_or_none(loader))

    def cut(self, loader: DataLoader, batches: int) -> None:
        """An epoch is cut now after these batches: the run ends where the script has been told another length."""
        name = self._name(loader)
        if name is not None and name not in self._cut:
            self._cut[name] = batches
            self._wholes[name] = length_or_none(loader) or 0
            self._stop_if_needed(name)
            self._recorder.record(EpochCut(name, batches, self._wholes[name], False))

    def keep(self, loader: DataLoader) -> bool:
        """Run this epoch to its end, and so in all runs. Returns whether that is known from now on."""
        name = self._name(loader)
        if name is not None:
            self._recorder.record(EpochKept(name))
        return name is not None

    def _name(self, loader: DataLoader) -> str | None:
        return next((name for dataset, name in self._names if dataset is loader.dataset), None)

    def _evaluates(self) -> bool:
        return not torch.is_grad_enabled() or self._is_evaluating()

    def _watch(self, kind: type) -> None:
        """Change what the loaders of a class say of their length."""
        for base in kind.__mro__[: kind.__mro__.index(DataLoader) + 1]:
            if "__len__" in vars(base) and base not in self._classes:
                self._classes.add(base)
                base.__len__ = self._traced(vars(base)["__len__"])  # type: ignore[attr-defined]

    def _traced(self, length: Callable[[Any], int]) -> Callable[[Any], int]:
        @functools.wraps(length)
        def traced(loader: Any) -> int:
            is_inner, self._is_inner = self._is_inner, True  # a subclass asks DataLoader for the length
            try:
                whole = length(loader)
            finally:
                self._is_inner = is_inner
            asker = sys._getframe(1).f_globals.get("__name__", "")
            if is_inner or asker.startswith(OWN) or not isinstance(loader, DataLoader) or self._evaluates():
                return whole
            name = self._name(loader)
            if name in self._settings.lengths:
                return min(whole, self._settings.lengths[name].of(whole) or whole)
            if name is not None and asker.partition(".")[0] != SHOWS_ONLY:
                self._asked.add(name)
                self._stop_if_needed(name)
            return whole

        return traced

    def _stop_if_needed(self, name: str) -> None:
        if self._settings.finds_lengths and name in self._asked and name in self._cut:
            self._recorder.record(EpochCut(name, self._cut[name], self._wholes[name], True))
            self._recorder.record(ProcessExit(0, None))
            self._recorder.close()
            os._exit(0)  # in a thread, too, for which the script would wait


def length_or_none(loader: DataLoader) -> int | None:
    """Return the batches of a whole epoch, None where that is not known."""
    try:
        return len(loader)
    except Exception:  # a TypeError or NotImplementedError, or what the script's own sampler raises
        return None
