"""One pass over a loader: its order, its batches and its end, recorded, shortened or replayed."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from itertools import chain, islice
from threading import Event
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch.utils.data import DataLoader, IterableDataset, default_collate

from retrofit.distributed.data.random_state import get_rng_state, set_rng_state
from retrofit.verify.trace.events import (
    OF_DATASET,
    BatchDrawn,
    DrawnAhead,
    EpochOrder,
    IterationEnd,
    IterationStart,
    SampleContents,
    UncontrolledDraw,
    WorkerStreams,
)
from retrofit.verify.trace.randomness.streams import hash_generator, in_main_thread, stream_hashes
from retrofit.verify.trace.recorder import own_errors_recorded

from .datasets import base_dataset, follows_epoch, length_of, members, sample_name, sampler_names
from .double import in_float64
from .lengths import length_or_none
from .sources import drawn_ahead, trace_stream
from .workers.fork import in_a_fork
from .workers.start import worker_streams

if TYPE_CHECKING:
    from .loaders import LoaderTrace

MOST_BATCHES = 100_000  # of an order that is drawn in advance; a longer one has no end in practice
MOST_LEFT = 4  # an epoch is not cut where no more than the MOST_LEFTth part of the steps would be left of it
COUNTING_S = 2.0  # at most, for the batches that are left of a stream
LONGEST_WAIT_S = 3.0  # for a step, of a thread that has drawn all its batches
OTHER_EPOCH = 1009  # that no script has come to
WATCHED_ITEMS = 4  # items per iteration in which the use of random streams is looked for


class TracedIterator:
    """One pass over a loader, as the script sees it."""

    def __init__(self, trace: LoaderTrace, loader: DataLoader, batches: Any) -> None:
        self.trace, self.loader, self._batches = trace, loader, batches
        self.dataset = loader.dataset
        self.is_map = not isinstance(self.dataset, IterableDataset)
        self.key = trace.names.key(self.dataset)
        self.id, self.epoch, self.repeat, self.steps, self.rows, self.num_drawn = 0, 0, 0, 0, 0, 0
        self.draws: set[str] = set()
        self._is_open, self._is_begun, self._is_endless, self.is_evaluation = True, False, False, False
        self._length: int | None = None  # batches of the whole pass, where that is known
        self._is_kept: bool | None = None  # a stream that is run to its end
        self._samples: list[Any] = []
        self._contents: dict[str, str] = {}
        self._watched = 0

    def __iter__(self) -> TracedIterator:
        return self

    def __len__(self) -> int:
        own = self.trace.lengths.of_epoch(self.loader)
        return min(own or len(self._batches), len(self._batches))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_batches"], name)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        """The class of torch's own iterator: a script may ask for it."""
        return type(self.__dict__["_batches"])

    def __next__(self) -> Any:
        trace = self.trace
        trace.before_batch()
        trace.streams.leave_batch()
        if not self._is_open and not in_main_thread():
            raise StopIteration
        if not self._is_begun:
            self._begin()
        if trace.all_steps_done() and (self._is_endless or trace.lengths.of_epoch(self.loader) == 0):
            self._end_script()
        if not self._is_endless and self._ends_here():
            self.end(capped=True)
            raise StopIteration
        self._samples, self._contents = [], {}
        try:
            batch = next(self._batches)
        except StopIteration:
            self.end(exhausted=True)
            raise
        with own_errors_recorded():
            batch = self._noted(batch)
        self.num_drawn += 1
        return batch

    def _batches_before(self) -> int:
        """Return the batches of this epoch with a step before this process: a run may continue inside the first epoch.

        It ends that epoch where the run before did, and its evaluation is as long as there.
        """
        is_first = self.epoch == self.repeat == self.trace.settings.epochs_done == 0
        return self.trace.settings.batches_done if is_first and not self.trace.is_evaluating() else 0

    def is_in_half(self) -> bool:
        """Return whether the last step is among those that were asked for: half of them in each epoch."""
        is_whole = self._is_endless or self.trace.lengths.of_epoch(self.loader) == 0
        return is_whole or (self._batches_before() + self.steps - 1) * 2 < self.trace.settings.steps

    def _ends_here(self) -> bool:
        """Return whether the epoch is cut here: after half of the steps, if more than half as many are left of it."""
        trace, steps, before = self.trace, self.trace.settings.steps, self._batches_before()
        # A thread that draws ahead is some batches before the steps, a number that is another one in each run.
        made = self.steps if in_main_thread() else self.num_drawn
        is_half = before * 2 < steps <= (before + made) * 2  # an epoch that has gone on after its half was not cut
        length = trace.lengths.of_epoch(self.loader)
        if length is not None:
            return 0 < length <= self.num_drawn or (before > 0 and length > 0 and is_half)
        if not is_half or (self._length is not None and (self._length - self.num_drawn) * MOST_LEFT <= steps):
            return False
        if self._has_few_left():
            return False
        trace.lengths.cut(self.loader, self.num_drawn)
        return True

    def _has_few_left(self) -> bool:
        """Return whether a stream is soon at its end: only there ranks with more batches than others show.

        Found out in a process of its own, in the runs that come first; then all runs and all ranks do the same.
        """
        trace = self.trace
        if self._is_kept is None:
            is_asked = trace.settings.finds_lengths and not self.is_map and in_main_thread()
            most = trace.settings.steps // 2
            left = in_a_fork(lambda: self._count_left(most), trace.recorder.close, COUNTING_S) if is_asked else None
            self._is_kept = left is not None and left <= most and trace.lengths.keep(self.loader)
        return self._is_kept

    def _count_left(self, most: int) -> int:
        return sum(1 for _ in islice(self._batches, most + 1))

    def _noted(self, batch: Any) -> Any:
        """Record a batch that is given to the script, and take it in hand; return it as the script gets it."""
        trace = self.trace
        own = [] if self._is_copy() else self._samples
        trace.recorder.record(BatchDrawn(self.id, self.num_drawn, own))
        if self._contents:
            trace.recorder.record(SampleContents(self.id, self._contents, trace.built_at.get(id(self.dataset))))
        self.rows += len(own)
        trace.mark_drawn(self)
        if trace.settings.controlled:
            batch = batch if trace.settings.as_is else in_float64(batch)
            trace.streams.enter_batch(self.epoch, self.num_drawn)
            seeds, parts = self._seeds()
            trace.on_batch(batch, seeds, parts=parts, place=(self.id, self.num_drawn))
        return batch

    def _begin(self) -> None:
        trace = self.trace
        self._is_begun, self.id = True, trace.num_iterations
        trace.begin(self)
        self.epoch = trace.epochs_before(self.key)
        if self.epoch > 0 and torch.is_grad_enabled():
            if trace.all_steps_done():
                self._end_script()  # all that was asked for, the last epoch's evaluation and checkpoint included
            if self.epoch == 1:
                trace.on_second_epoch()
        self.repeat = trace.repeats.get((self.key, self.epoch), 0)
        trace.repeats[self.key, self.epoch] = self.repeat + 1
        with own_errors_recorded():
            self._describe(self.repeat)
        if not in_main_thread():
            trace.recorder.record(DrawnAhead(self.id))
        with own_errors_recorded():
            self._start_workers()
        with own_errors_recorded():
            self._trace_samples()

    def _trace_samples(self) -> None:
        trace = self.trace
        replayed = trace.replay.batches((self.key, self.epoch, self.repeat)) if trace.replay else None
        if replayed is None and trace.replay and trace.settings.epochs_done and torch.is_grad_enabled():
            replayed = trace.replay.batches_of_epoch(self.key, self.epoch)
        if self.is_map:
            replayed = self._trace_order(replayed)
        self._trace_items(replayed)

    def _end_script(self) -> NoReturn:
        """End the script; in a thread that draws ahead only this pass, because the script would wait for it."""
        if in_main_thread():
            raise SystemExit(0)
        self._is_open = False
        raise StopIteration

    def _describe(self, repeat: int) -> None:
        loader, trace = self.loader, self.trace
        generator = getattr(loader, "generator", None)
        is_first = repeat == 0 and self.key not in trace.epochs
        probe = self._probe() if is_first or torch.is_grad_enabled() else None
        own_state = trace.contents.state(self.key, self.dataset)
        if own_state is not None:
            self.draws.add(OF_DATASET)
        trace.recorder.record(
            IterationStart(
                iteration=self.id,
                dataset=self.key,
                is_map=self.is_map,
                length=length_of(self.dataset),
                epoch=self.epoch,
                repeat=repeat,
                samplers=sampler_names(loader),
                batch_size=loader.batch_size,
                drop_last=loader.drop_last,
                num_workers=trace.workers_of(self.dataset).number,
                num_batches=length_or_none(loader),
                grad_enabled=torch.is_grad_enabled(),
                streams={
                    **stream_hashes(),
                    "loader": None if generator is None else hash_generator(generator),
                    OF_DATASET: own_state,
                },
                members=members(self.dataset) if is_first else None,
                probe=probe,
                follows_epoch=self._follows_epoch(),
            )
        )

    def _follows_epoch(self) -> bool:
        """Return whether set_epoch() changes the order, at the second epoch of a training on several ranks."""
        is_asked = self.epoch == 1 and self.repeat == 0 and torch.is_grad_enabled() and in_main_thread()
        if not (is_asked and self.is_map and self.trace.settings.controlled and self.trace.settings.world_size > 1):
            return False
        loader = self.loader
        return bool(in_a_fork(lambda: follows_epoch(loader, OTHER_EPOCH), self.trace.recorder.close, COUNTING_S))

    def _start_workers(self) -> None:
        """Record what the script's own start of a worker does to random streams, at the beginning of a training."""
        trace, start = self.trace, self.loader.worker_init_fn
        workers = trace.workers_of(self.dataset).number
        is_compared = trace.settings.controlled and trace.settings.world_size > 1 and self.is_map
        if not (is_compared and workers and start and torch.is_grad_enabled() and self.epoch == self.repeat == 0):
            return
        streams = worker_streams(self.loader, self._batches._base_seed, workers, trace.recorder.close)
        if streams:
            trace.recorder.record(WorkerStreams(self.id, streams))

    def _trace_order(self, replayed: list[list[Any]] | None) -> list[list[Any]] | None:
        """Record the whole order as the sampler gives it, then hand out that order, or the one to be replayed, if any.

        One process draws its order from its own streams, and a sampler of the ranks need not: in a replay they are
        afterwards what they are on rank 0, or what is drawn later (the weights of a second model) would differ.
        """
        own, before = get_rng_state(), stream_hashes()
        source = self._batches._sampler_iter
        limit = min(length_or_none(self.loader) or MOST_BATCHES, MOST_BATCHES)
        order, rest = drawn_ahead(source, limit)
        further = list(islice(source, 1)) if limit == MOST_BATCHES else []
        self._is_endless = bool(further)
        self._length = None if further else len(order if replayed is None else replayed)
        named = [[] if self._is_copy() else self._names(indices) for indices in order]
        draws = stream_hashes() != before
        self.trace.recorder.record(EpochOrder(self.id, named, not self._is_endless, draws))
        if draws and self.trace.replay and self.trace.replay.draws_no_order((self.key, self.epoch, self.repeat)):
            set_rng_state(own)
        if draws and replayed is None and self.trace.replay and not torch.is_grad_enabled():
            replayed = self._shuffled_evaluation(named)
        self._batches._sampler_iter = iter(replayed) if replayed is not None else chain(order, further, rest)
        return replayed

    def _shuffled_evaluation(self, named: list[list[Any]]) -> list[list[Any]] | None:
        """Return the batches of the ranks where they are as many and as long: other ones have other means."""
        assert self.trace.replay is not None
        ranks = self.trace.replay.evaluated((self.key, self.epoch, self.repeat))
        return ranks if sorted(map(len, ranks)) == sorted(map(len, named)) else None

    def _trace_items(self, replayed: list[list[Any]] | None) -> None:
        fetcher = self._batches._dataset_fetcher
        if not self.is_map:
            trace_stream(self, replayed)
            return
        fetch, by_name = fetcher.fetch, replayed is not None
        dataset = base_dataset(self.dataset) if by_name else self.dataset

        def fetch_items(indices: Any) -> Any:
            self._samples = indices if by_name else self._names(indices)
            if not self.trace.settings.controlled:
                return fetch(indices)
            if not fetcher.auto_collation:
                return fetcher.collate_fn(self._item(dataset, indices, self._samples[0]))
            items = [self._item(dataset, *pair) for pair in zip(indices, self._samples)]
            return self._collated(fetcher.collate_fn, items)

        fetcher.fetch = fetch_items

    def _collated(self, collate: Callable[[list[Any]], Any], items: list[Any]) -> Any:
        """Return the batch that a function makes of samples; what it draws depends on the batch."""
        trace, place = self.trace, (self.epoch, self.num_drawn)
        if collate is default_collate:
            return collate(items)
        if not in_main_thread():
            return self._collated_ahead(collate, items)
        trace.streams.enter_batch(*place, collates=True)
        try:
            trace.on_collate(*self._seeds())
            return collate(items)
        finally:
            trace.streams.leave_batch()

    def _collated_ahead(self, collate: Callable[[list[Any]], Any], items: list[Any]) -> Any:
        """Return the batch that a function makes of samples in a thread, where draws cannot be tied to rows."""
        streams = self.trace.streams
        seed = streams.sample_seed(self.epoch, self.num_drawn)
        batch, used = streams.for_sample(seed, lambda: collate(items), watch=self.num_drawn == 0)
        if used:
            code = getattr(collate, "__code__", None)
            place = f"{os.path.basename(code.co_filename)}:{code.co_firstlineno} in " if code else ""
            where = f"{place}{getattr(collate, '__name__', type(collate).__name__)}, in a thread that draws ahead"
            self.trace.recorder.record(UncontrolledDraw("collate_fn", [len(items)], where))
        return batch

    def _seeds(self) -> tuple[list[int], list[list[int]] | None]:
        """Return the seeds of the samples of the batch in hand, and which of them are of each rank."""
        trace, number = self.trace, self.num_drawn
        seeds = [trace.streams.sample_seed(self.epoch, name) for name in self._samples]
        return seeds, trace.replay.parts((self.key, self.epoch, self.repeat), number) if trace.replay else None

    def _item(self, dataset: Any, index: Any, name: Any) -> Any:
        streams, self._watched = self.trace.streams, self._watched + 1
        seed = streams.sample_seed(self.epoch, name)
        with self.trace.contents.seeded(self.key, dataset, seed):
            item, used = streams.for_sample(seed, lambda: dataset[index], watch=self._watched <= WATCHED_ITEMS)
        self.draws |= used
        content = self.trace.contents.of_sample(self.key, item)
        if content is not None:
            self._contents[str(name)] = content
        return item

    def _names(self, indices: Any) -> list[Any]:
        indices = indices if isinstance(indices, (list, tuple)) else [indices]
        return [sample_name(self.dataset, index) for index in indices]

    def _is_copy(self) -> bool:
        """Return whether this rank computes rank 0's batches once more, which count nothing here: they stay whole."""
        sampler = getattr(self.loader, "sampler", None)
        is_kept = getattr(sampler, "kept", False) and getattr(sampler, "part", None) is not None
        return self.trace.settings.rank > 0 and is_kept

    def _probe(self) -> dict[str, str] | None:
        if not self.trace.settings.controlled or not self.is_map:
            return None
        try:
            return self.trace.contents.probe(self.key, self.dataset)
        except Exception:  # of the script's own data set, in a sample that the script need not have read
            return None

    def end(self, exhausted: bool = False, capped: bool = False) -> None:
        """The iteration is over: it came to its end, was ended here, or the script has left it."""
        if not self._is_open:
            return
        if exhausted or capped:
            self._await_step()
        self._is_open = False
        trains = self.steps > 0
        if trains:
            self.trace.epochs[self.key] = self.epoch + 1
        else:
            self.trace.forget(self)
            if exhausted:
                self.trace.collect(self)
        probe = self._probe() if trains else None
        self.trace.recorder.record(IterationEnd(self.id, trains, exhausted, capped, sorted(self.draws), probe))

    def _await_step(self) -> None:
        """Wait in a thread that draws ahead for the first step: which epoch its next pass is does not depend on time.

        The batches that it has drawn are there for the step.
        """
        is_ahead = not in_main_thread() and torch.is_grad_enabled() and not self.is_evaluation and self.num_drawn
        until = time.monotonic() + LONGEST_WAIT_S
        while is_ahead and not self.steps and time.monotonic() < until:
            Event().wait(0.005)
