"""Events of samples: passes over a dataset, and what is drawn in them."""

from __future__ import annotations

from dataclasses import dataclass

from .event import Event, Place, Sample


@dataclass(frozen=True)
class IterationStart(Event):
    """A pass over a DataLoader begins: its first batch is asked for."""

    iteration: int  # number of the pass in this process
    dataset: str  # type, length and how many like it came before: "Numbers:13:0"
    is_map: bool  # not an IterableDataset
    length: int | None  # samples in the dataset; None where it does not know
    epoch: int  # training passes over this dataset that were finished before
    repeat: int  # how many passes over it began before in this epoch
    samplers: list[str]  # class names, from the batch sampler inwards
    batch_size: int | None  # None with a batch sampler of the script's own
    drop_last: bool  # of the loader
    num_workers: int  # that the script asked for; the trace uses none
    num_batches: int | None  # None where the loader does not know
    grad_enabled: bool  # not under torch.no_grad()
    streams: dict[str, str | None]  # state hashes: "python", "torch", "numpy", "loader" and OF_DATASET (None: has none)
    members: list[Sample] | None  # of a Subset in its first pass: the indices in its base dataset
    probe: dict[str, str] | None  # index -> content hash of a few samples, in a controlled run
    follows_epoch: bool = False  # another set_epoch() would make another order; asked for once

    @property
    def place(self) -> Place:
        """The place of the pass among those of its run, the same on every rank."""
        return self.dataset, self.epoch, self.repeat


@dataclass(frozen=True)
class DrawnAhead(Event):
    """A pass is made by a thread that draws batches ahead of the steps, in which they are computed with later."""

    iteration: int  # number of the pass


@dataclass(frozen=True)
class EpochOrder(Event):
    """The whole order of the samples as the sampler gives it, drawn before the first batch."""

    iteration: int  # number of the pass
    batches: list[list[Sample]]  # in the order in which they are drawn
    is_complete: bool  # False for a sampler that never ends
    draws: bool = False  # whether the sampler drew it from the process's own streams


@dataclass(frozen=True)
class BatchDrawn(Event):
    """A batch is given to the script."""

    iteration: int  # number of the pass
    number: int  # of the batch in this pass
    samples: list[Sample]  # in the order in which they were loaded


@dataclass(frozen=True)
class BatchPart(Event):
    """A backward was computed from a part of a batch that a loader gave, in a controlled run."""

    iteration: int  # number of the pass
    number: int  # of the batch in this pass
    rows: list[int]  # places in the batch


@dataclass(frozen=True)
class SampleContents(Event):
    """The content of samples of a batch, in a controlled run: of the first that are drawn of a dataset."""

    iteration: int  # number of the pass
    contents: dict[str, str]  # name of the sample -> hash
    built: str | None  # where the loader is built: "train.py:12"


@dataclass(frozen=True)
class WorkerStreams(Event):
    """What `worker_init_fn` makes of the random streams of the first workers, as in IterationStart.streams."""

    iteration: int  # number of the pass
    streams: list[dict[str, str]]  # by worker


@dataclass(frozen=True)
class IterationEnd(Event):
    """A pass over a DataLoader is over."""

    iteration: int  # number of the pass
    is_training: bool  # an optimizer step followed one of its batches
    is_exhausted: bool  # it came to its own end
    is_capped: bool  # ended by the trace, after the steps that were asked for
    draws: list[str]  # random streams that loading samples drew from, in a controlled run
    probe: dict[str, str] | None  # as in IterationStart, after the pass


@dataclass(frozen=True)
class EpochCut(Event):
    """An epoch of a loader is cut for the first time, and the script is not told so by the loader's length."""

    loader: str  # its name in TraceSettings.lengths
    batches: int  # after which it is cut
    whole: int  # the batches of the epoch; 0 where its length is not known
    is_last: bool  # the script asks for the length: the run has ended, to be made again with the right one


@dataclass(frozen=True)
class EpochKept(Event):
    """An epoch of a stream is not cut: few batches are left of it."""

    loader: str  # its name in TraceSettings.lengths


@dataclass(frozen=True)
class LateTraining(Event):
    """A pass that has ended is training: a step was made from the batches that it gave (`list(loader)`)."""

    iteration: int  # number of the pass
