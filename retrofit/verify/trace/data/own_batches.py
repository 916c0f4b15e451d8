"""Training batches that no DataLoader gives: a generator's, slices and draws of the script, which the runtime shares.

They are seen where the runtime of the traced script gives a rank its part. On one process it would give back what it
was given, and is made to do what it does on several: the batches are then the same, each in one piece.
"""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch.utils.data import DataLoader

from retrofit.verify.trace.after_import import after_import, after_import_of
from retrofit.verify.trace.computation.fingerprint import content_hash
from retrofit.verify.trace.computation.operators import untraced
from retrofit.verify.trace.events import OWN_BATCHES, BatchDrawn, IterationEnd, IterationStart
from retrofit.verify.trace.filesystem.own_work import own_work
from retrofit.verify.trace.runtime import PACKAGE, defines_mark

from .double import in_float64
from .loaders import LoaderTrace

DRAWS = "own_draws"  # a folder: what rank 0 has drawn for all ranks


class OwnBatches:
    """Watches the batches that a runtime divides among the ranks without a DataLoader, in runs that are compared."""

    def __init__(self, loaders: LoaderTrace) -> None:
        self._loaders = loaders
        self._is_alone = loaders.settings.world_size == 1
        self._num_draws = 0
        self._passes: dict[Any, int] = {}  # the open pass of each line of the script that takes its part
        self._keys: dict[Any, str] = {}
        self._numbers: dict[int, int] = {}  # batches of each pass

    def install(self) -> None:
        """Change each runtime when it is imported."""
        project = self._loaders.settings.project
        after_import(f"{PACKAGE}.data.draws", self._watch_parts)
        after_import(f"{PACKAGE}.data.loaders", self._watch_iterables)
        after_import_of(lambda path: path.startswith(project) and defines_mark(path), self._watch_file)

    def _watch_file(self, module: ModuleType) -> None:
        self._watch_parts(module)
        self._watch_iterables(module)

    def _watch_parts(self, module: Any) -> None:
        if self._is_alone:
            module.own_draw = self._taking_all(self._drawn_by_ranks)
            module.own_part = self._taking_all(module.own_part)
            return
        take = module._taken
        if self._loaders.settings.rank == 0:
            module._of_main = self._keeping(module._of_main)

        def taken(batch: Any, frame: Any) -> Any:
            own = take(batch, frame)
            return own if own is batch else self._given(own, (frame.f_code.co_filename, frame.f_lineno))

        module._taken = taken

    def _taking_all(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def taken(batch: Any, *size: int) -> Any:
            frame = sys._getframe(1)
            return self._given(function(batch, *size), (frame.f_code.co_filename, frame.f_lineno))

        return taken

    def _keeping(self, share: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Return how rank 0 shares what it has drawn and keeps it for the run that repeats this one."""
        is_part = False

        def shared(batch: Any) -> Any:
            nonlocal is_part
            if is_part:  # of a tuple
                return share(batch)
            is_part = True
            try:
                whole = share(batch)
            finally:
                is_part = False
            path = self._file_of_draw(os.path.join(self._loaders.settings.folder, DRAWS))
            with untraced(), own_work():
                path.parent.mkdir(exist_ok=True)
                path.write_bytes(pickle.dumps(whole))
            return whole

        return shared

    def _drawn_by_ranks(self, batch: Any) -> Any:
        """Return the batch that rank 0 has drawn in the run that is repeated; `batch` itself where there is none."""
        settings = self._loaders.settings
        if not settings.replay:
            return batch
        path = self._file_of_draw(os.path.join(os.path.dirname(settings.replay[0]), DRAWS))
        if not path.exists():
            return batch
        with untraced():
            return pickle.loads(path.read_bytes())

    def _file_of_draw(self, folder: str) -> Path:
        self._num_draws += 1
        return Path(folder, f"{self._num_draws}.pickle")

    def _watch_iterables(self, module: Any) -> None:
        give, distribute = module._given_in_turn, module.distribute_loader

        def given(*arguments: Any) -> Any:
            shared = give(*arguments)
            shared.__dict__["_split"] = self._passing(module, shared, shared._split)
            return shared

        def distributed(loader: Any, **options: Any) -> Any:
            frame = sys._getframe(1)
            is_cut = options.get("pad_whole") and module.get_option("batch") == "global"  # the ranks cut its batches
            is_sharded = isinstance(loader, DataLoader) or module.wrapped_loaders(loader)
            if isinstance(loader, module.BatchesInTurn) or (is_sharded and not is_cut):
                return distribute(loader, **options)
            line = frame.f_code.co_filename, frame.f_lineno
            return given(loader, options.get("seed"), line, options.get("keep_batches", False))

        module._given_in_turn = given
        if self._is_alone:
            module.distribute_loader = distributed

    def _passing(self, module: Any, shared: Any, split: Callable[[], Iterator[Any]]) -> Callable[[], Iterator[Any]]:
        """Return how to go through an iterable's batches once and record them."""

        def one_pass() -> Iterator[Any]:
            number, before = self._begin(id(shared)), self._loaders.recorder.step
            batches = split()
            while True:
                self._loaders.before_batch()
                self._loaders.streams.leave_batch()
                with self._loaders.unseen():  # a loader that all ranks draw the same whole batches from
                    batch = next(batches, batches)
                if batch is batches:
                    break
                yield self._recorded(batch, number, is_rows=False, in_use=list(module.batches_in_use.values()))
            trains = self._loaders.recorder.step > before
            self._loaders.recorder.record(IterationEnd(number, trains, True, False, [], None))

        return one_pass

    def _given(self, own: Any, line: Any) -> Any:
        """Return a rank's part of a batch, recorded as the next one of its line's only pass."""
        if not torch.is_grad_enabled():  # an evaluation's
            return own
        self._loaders.before_batch()
        if line not in self._passes:
            self._passes[line] = self._begin(line)
        return self._recorded(own, self._passes[line], is_rows=True)

    def _begin(self, source: Any) -> int:
        loaders = self._loaders
        loaders.leave_evaluations()
        key = self._keys.setdefault(source, f"{OWN_BATCHES}:-:{len(self._keys)}")
        number = loaders.num_iterations
        loaders.num_iterations += 1
        epoch = loaders.epochs.get(key, 0)
        loaders.epochs[key] = epoch + 1
        self._numbers[number] = 0
        loaders.recorder.record(
            IterationStart(
                iteration=number,
                dataset=key,
                is_map=False,
                length=None,
                epoch=epoch,
                repeat=0,
                samplers=[],
                batch_size=None,
                drop_last=False,
                num_workers=0,
                num_batches=None,
                grad_enabled=torch.is_grad_enabled(),
                streams={},
                members=None,
                probe=None,
            )
        )
        return number

    def _recorded(self, batch: Any, number: int, is_rows: bool, in_use: Sequence[Any] = ()) -> Any:
        """Note a batch, let what is drawn for it depend on its samples until the next step, and return it.

        `in_use`: what the runtime says of it. Of a batch that stays whole, or of a repeated sample, one rank's counts.
        """
        loaders, place = self._loaders, self._numbers[number]
        batch = batch if loaders.settings.as_is else in_float64(batch)
        samples = [_name_of(row) for row in _rows_of(batch, is_rows)]
        self._numbers[number] += 1
        counts = not in_use or any(part.weight for part in in_use)
        loaders.recorder.record(BatchDrawn(number, place, samples if counts else []))
        loaders.streams.leave_batch()
        loaders.streams.enter_batch(number, place, until_step=True)
        is_whole = any(part.length < sum(part.of_ranks) for part in in_use)  # on one process, too
        ranks = 1 if is_whole else max(1, len(loaders.settings.replay))  # of which each has every `ranks`-th row
        parts = [list(range(rank, len(samples), ranks)) for rank in range(ranks)]
        seeds = [loaders.streams.sample_seed(place, name) for name in samples]
        loaders.on_batch(batch, seeds, is_own=True, parts=parts)
        return batch


def _rows_of(batch: Any, is_rows: bool) -> Iterator[Any]:
    """Yield what a batch holds of each sample. With `is_rows` the entries of a list are samples, else its parts are."""
    kinds = (tuple,) if is_rows else (tuple, list)
    parts = list(batch.values()) if isinstance(batch, Mapping) else batch if isinstance(batch, kinds) else [batch]
    for row in zip(*parts):
        yield row[0] if len(row) == 1 else list(row)


def _name_of(row: Any) -> Any:
    """Return a sample's number where that is what the row is, else the hash of its content."""
    is_tensor = isinstance(row, torch.Tensor)
    is_number = row.dim() == 0 and not row.is_floating_point() if is_tensor else hasattr(row, "__index__")
    return int(row) if is_number and not getattr(row, "shape", ()) else content_hash(row)
