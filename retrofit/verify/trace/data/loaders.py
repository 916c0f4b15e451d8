"""The DataLoaders of a process: which passes over them are trainings, and how many batches were trained on."""

from __future__ import annotations

import functools
import inspect
import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils.data import DataLoader

from retrofit.verify.trace.events import LateTraining
from retrofit.verify.trace.randomness.streams import Streams
from retrofit.verify.trace.recorder import Recorder
from retrofit.verify.trace.settings import TraceSettings

from .contents import Contents
from .datasets import DatasetNames, script_lines
from .lengths import Lengths
from .passes import TracedIterator
from .replay.batches import Replay
from .workers.stream import AskedWorkers


class LoaderTrace:
    """Watches every DataLoader of a process. Install it before the script builds one."""

    def __init__(
        self,
        recorder: Recorder,
        settings: TraceSettings,
        streams: Streams,
        on_batch: Callable[..., None],
        on_second_epoch: Callable[[], None],
        is_evaluating: Callable[[], bool],
    ) -> None:
        self.recorder, self.settings, self.streams = recorder, settings, streams
        self.on_batch, self.on_second_epoch, self.is_evaluating = on_batch, on_second_epoch, is_evaluating
        self.before_batch: Callable[[], None] = lambda: None  # a step that the script makes by hand is over
        self.on_collate: Callable[..., None] = lambda seeds, parts: None
        self.names = DatasetNames()
        self.replay = Replay(settings.replay, settings.reorder) if settings.replay else None
        self.epochs: dict[str, int] = {}  # training iterations finished, by dataset
        self.repeats: dict[tuple[str, int], int] = {}  # passes begun, by dataset and epoch
        self.asked_workers: dict[int, AskedWorkers] = {}  # by dataset
        self.built_at: dict[int, str] = {}  # where a loader of a dataset is built
        self.lengths = Lengths(recorder, settings, is_evaluating)
        self.contents = Contents(streams, max(1, len(settings.replay)))
        self.num_iterations = 0
        self._batches_used = 0  # batches after which an optimizer has made a step
        self._steps_since_draw: Counter[int] = Counter()  # by optimizer, since a loader gave its last training batch
        self._latest: dict[str, TracedIterator] = {}
        self._is_unseen = False
        self._drawn: list[TracedIterator] = []  # iterations that gave a batch since the last optimizer step
        self._collected: list[TracedIterator] = []  # passes that may be trained on yet: `batches = list(loader)`
        self._late_optimizer: int | None = None  # that made the first step from batches which were collected before

    def install(self) -> None:
        build, iterate = DataLoader.__init__, DataLoader.__iter__
        signature = inspect.signature(build)

        @functools.wraps(build)
        def build_without_workers(loader: DataLoader, *args: Any, **kwargs: Any) -> None:
            bound = signature.bind(loader, *args, **kwargs)
            workers = bound.arguments.get("num_workers", 0)
            context = bound.arguments.get("multiprocessing_context")
            for name in ("num_workers", "prefetch_factor", "persistent_workers", "multiprocessing_context", "timeout"):
                bound.arguments.pop(name, None)
            build(*bound.args, **bound.kwargs)
            dataset = id(loader.dataset)
            method = context if isinstance(context, str) or context is None else context.get_start_method()
            if workers >= self.workers_of(loader.dataset).number:
                self.asked_workers[dataset] = AskedWorkers(workers, method)
            lines = script_lines(self.settings.project)
            self.names.note(loader.dataset, lines)
            self.lengths.note(loader, lines)
            if lines:
                self.built_at[dataset] = f"{os.path.relpath(lines[0][0], self.settings.project)}:{lines[0][1]}"

        @functools.wraps(iterate)
        def iterate_traced(loader: DataLoader) -> Any:
            if self._is_unseen:
                return iterate(loader)
            self.streams.leave_batch()
            return TracedIterator(self, loader, iterate(loader))

        DataLoader.__init__ = build_without_workers  # type: ignore[method-assign, assignment]
        DataLoader.__iter__ = iterate_traced  # type: ignore[method-assign, assignment]

    def workers_of(self, dataset: Any) -> AskedWorkers:
        """Return the workers that a loader of this dataset asks for: it is built without, and runs in the process."""
        return self.asked_workers.get(id(dataset), AskedWorkers())

    @contextmanager
    def unseen(self) -> Iterator[None]:
        """Run the block without a record of the passes over loaders that begin in it."""
        self._is_unseen = True
        try:
            yield
        finally:
            self._is_unseen = False

    def mark_step(self, optimizer: int) -> None:
        """An optimizer step was made from the batches drawn since the last one.

        A second optimizer's step on the same batch counts nothing: two epochs of both must fit into the steps.
        """
        if self._collected and not self._drawn:
            self._train_late(self._collected[0], optimizer)
        for iteration in self._drawn:
            iteration.steps += 1
            iteration.rows = 0
            self._late_optimizer = None
        is_asked_for = any(iteration.is_in_half() for iteration in self._drawn)
        self._batches_used += is_asked_for or optimizer == self._late_optimizer
        self._collected = []
        self._steps_since_draw[optimizer] += 1
        self._drawn = []
        self.streams.on_step()

    def _train_late(self, iteration: TracedIterator, optimizer: int) -> None:
        """Note that a pass which has come to its end is training, after all."""
        iteration.steps, self._late_optimizer = 1, optimizer
        self.epochs[iteration.key] = iteration.epoch + 1
        self.recorder.record(LateTraining(iteration.id))

    def collect(self, iteration: TracedIterator) -> None:
        """A pass has come to its end without a step: its batches may be kept, and trained on later."""
        if torch.is_grad_enabled() and iteration.num_drawn and not iteration.is_evaluation:
            self._collected.append(iteration)

    def begin(self, iteration: TracedIterator) -> None:
        """Count an iteration that starts; one over the same dataset that the script has left is over now."""
        self.leave_evaluations()
        left = self._latest.get(iteration.key)
        if left is not None:
            left.end()
        self._latest[iteration.key] = iteration
        self.num_iterations += 1

    def leave_evaluations(self) -> None:
        """End evaluations that the script has left before their last batch, now that a training draws batches."""
        left = [drawn for drawn in self._drawn if drawn.is_evaluation and not drawn.steps]
        for drawn in left if not self.is_evaluating() else ():
            drawn.end()

    def rows(self) -> int:
        """Return the number of samples drawn since the last optimizer step."""
        return sum(iteration.rows for iteration in self._drawn)

    def forget(self, iteration: TracedIterator) -> None:
        """An iteration has ended without an optimizer step: its samples are not those of the next one."""
        self._drawn = [drawn for drawn in self._drawn if drawn is not iteration]

    def mark_drawn(self, iteration: TracedIterator) -> None:
        iteration.is_evaluation = self.is_evaluating()
        if torch.is_grad_enabled():
            self._steps_since_draw.clear()
        if iteration not in self._drawn:
            self._drawn.append(iteration)

    def epochs_before(self, key: str) -> int:
        """Return how many epochs the training over a dataset had; an evaluation after a training epoch is none of it.

        The loop over an evaluation need not be without gradients: `for batch in loader: with torch.no_grad(): ...`.
        """
        is_evaluation = bool(self.epochs) and self.is_evaluating()
        return self.epochs.get(key, 0 if is_evaluation else self.settings.epochs_done)

    def all_steps_done(self) -> bool:
        before = min(self.settings.batches_done, (self.settings.steps + 1) // 2)
        return 0 < self.settings.steps <= before + self._batches_used

    def is_without_end(self, optimizer: int) -> bool:
        """Return whether an optimizer made all steps without a loader, at whose batches the training could be ended."""
        return 0 < self.settings.steps <= self._steps_since_draw[optimizer]
