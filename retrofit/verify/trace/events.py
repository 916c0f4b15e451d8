"""The schema of a trace: what a traced process writes, one line per event, and what `verify` reads.

Each kind of event is a frozen dataclass. A TypedDict would be read without a conversion, but its fields are string
subscripts again, and a field that is missing shows up only where it is used.

A line is a JSON object: "event" is the name of the class, "seconds" and "step" are those of `Event`, and the rest are
the fields of the class. Standard library only: the command line reads what it writes.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from dataclasses import dataclass, field
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
        if fields.keys() != _FIELDS[cls]:
            names = sorted(fields.keys() ^ _FIELDS[cls])
            raise ValueError(f"a {cls.__name__} has other fields: {', '.join(names)}")
        event = object.__new__(cls)
        event.__dict__.update(fields)  # __init__ of a frozen class takes twice the time, for 100,000 events
        return event


Record = Callable[[Event], None]


def is_own_batches(dataset: str) -> bool:
    """Return whether the `dataset` of an IterationStart means batches that no DataLoader gives."""
    return dataset.startswith(f"{OWN_BATCHES}:")


# --- the process


@dataclass(frozen=True)
class ProcessStart(Event):
    """The trace begins: the first event of every process."""

    rank: int  # of this process, as the run has given it
    world_size: int  # processes of the run
    torch: str  # its version
    cuda: bool  # whether it can use a GPU
    threads: int  # of torch, for one operator


@dataclass(frozen=True)
class ScriptError:
    """The exception that ended the script."""

    type: str  # name of its class
    message: str  # 2000 characters at most
    where: str | None  # the innermost line of the project: "train.py:12 in main"
    traceback: str  # the last 6000 characters


@dataclass(frozen=True)
class ProcessExit(Event):
    """The script has ended. Absent where the process was killed."""

    status: int  # exit status; 130 after a KeyboardInterrupt
    error: ScriptError | None  # None after an end without an error

    @classmethod
    def restored(cls, fields: dict[str, Any]) -> Event:
        error = fields.get("error")
        return super().restored({**fields, "error": ScriptError(**error) if error else None})


@dataclass(frozen=True)
class TraceError(Event):
    """The tracer itself has failed at one place, and the script continues. Once per place, 10 per process at most."""

    error: ScriptError  # `where` is the place in the tracer

    @classmethod
    def restored(cls, fields: dict[str, Any]) -> Event:
        return super().restored({**fields, "error": ScriptError(**fields["error"])})


@dataclass(frozen=True)
class LineRun(Event):
    """A line that the run was asked to watch is run for the first time."""

    path: str  # of the file, relative to the project
    line: int  # from 1


@dataclass(frozen=True)
class GroupJoin(Event):
    """The script has called init_process_group."""

    backend: str | None  # "gloo"; None, like the next two, where it failed
    world_size: int | None  # processes in the group
    rank: int | None  # of this process in the group
    master_port: str | None  # at which the ranks meet; None where no port says it (file://)
    launcher_port: str | None  # MASTER_PORT when the script began


@dataclass(frozen=True)
class UnevenInputs(Event):
    """The script trains in torch's Join context, `with model.join()`: ranks may have other numbers of batches."""


@dataclass(frozen=True)
class DispatchedBatches(Event):
    """A library begins to draw the batches of all ranks on rank 0, and to send each rank its part."""


@dataclass(frozen=True)
class CountedPass(Event):
    """A loader of a library begins a pass, whose number from 0 in this process is the epoch of its sampler."""


@dataclass(frozen=True)
class SpawnCall(Event):
    """The script calls torch.multiprocessing.spawn or start_processes."""

    nprocs: int  # processes that it asks for
    where: str | None  # the line of the project: "train.py:12 in main"
    problem: str | None  # why these processes cannot be followed


LOCAL_RANK = ("--local_rank", "--local-rank")  # what launchers pass: before torch 2.0, and since


@dataclass(frozen=True)
class ParserOption:
    """An option of an argument parser."""

    flags: list[str]  # ["-b", "--batchsize"]; none for a positional argument
    dest: str  # its name in the parsed options
    takes_value: bool  # not a switch
    help: str  # "" where there is none
    choices: list[str] | None  # 100 at most


@dataclass(frozen=True)
class ParserUse(Event):
    """An ArgumentParser is about to parse for the first time."""

    options: list[ParserOption]  # in the order in which they were added
    accepts_local_rank: dict[str, bool]  # by flag, of LOCAL_RANK
    refuses_unknown: bool  # parse_args, not parse_known_args

    @classmethod
    def restored(cls, fields: dict[str, Any]) -> Event:
        return super().restored({**fields, "options": [ParserOption(**option) for option in fields["options"]]})


@dataclass(frozen=True)
class DecisionInput(Event):
    """The script is about to decide about its training: to stop, to step, to keep a state, by which learning rate."""

    path: str  # of the file, relative to the project
    line: int  # from 1
    text: str  # "acc > best", or the call that is given the figure: "ReduceLROnPlateau.step"
    kind: str  # what it decides: KEEPS or PARTS of settings.py
    names: list[str]  # of the figures that it decides by
    values: list[float]  # of these

    @property
    def place(self) -> str:
        return f"{self.path}:{self.line}"


# --- what it puts out


@dataclass(frozen=True)
class OutputLine(Event):
    """A whole line that is not blank and not of a progress bar."""

    text: str  # 500 characters at most
    stream: str  # "stdout" or "stderr"
    where: str | None = None  # the line of the script that prints it: "train.py:12 in main"


@dataclass(frozen=True)
class LoggedScalar(Event):
    """A number is logged with TensorBoard or wandb."""

    name: str  # tag, or the keys of a wandb dict joined with "/"
    value: float  # as the script gives it
    axis: int | None  # the step that the script gives; None where it gives none
    where: str | None = None  # the line of the script that logs it


@dataclass(frozen=True)
class FileChange(Event):
    """A file or folder is about to be written, made, renamed or removed."""

    op: str  # "write", "mkdir", "rename" or "remove"
    path: str  # relative to the project, absolute outside it
    source: str | None = None  # of a rename; None also where the source has no name in the trace


@dataclass(frozen=True)
class FileSave(Event):
    """torch.save has written a file, or one that it wrote was renamed."""

    path: str  # as in FileChange
    keys: Keys  # what is in it
    values: Values = field(default_factory=dict)  # by the same names; a random state is one entry


@dataclass(frozen=True)
class FileLoad(Event):
    """torch.load is about to read a file."""

    path: str | None  # as in FileChange; None for one without a name in the trace
    has_map_location: bool  # it was given and is not None
    is_own: bool  # in the run's copy of the project, and not a link to a file of the user's
    by_script: bool = True  # called in a file of the project, not in that of a library


@dataclass(frozen=True)
class FileRead(Event):
    """A file of the project that was written lately is opened to be read."""

    path: str  # as in FileChange
    where: str | None  # the line of the script
    waited: bool  # the process has slept or locked a file before: it may wait for the file by itself


@dataclass(frozen=True)
class FileLock(Event):
    """A file is locked, as one that holds nothing and is there to be locked is."""

    path: str  # as in FileChange
    is_empty: bool  # when it is locked


@dataclass(frozen=True)
class MetricRows(Event):
    """A library has gathered rows of all ranks for a metric, without those that fill up the last batch."""

    rows: int  # that are left


@dataclass(frozen=True)
class RowsCut(Event):
    """The script takes the first rows of a tensor while it evaluates, outside its model. 500 per process at most."""

    rows: int  # of the tensor
    kept: int  # of these


# --- samples


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


# --- computation


@dataclass(frozen=True)
class BackwardCall(Event):
    """torch.autograd.backward is about to run."""

    loss: float  # sum of what it starts from, as the runtime weighs an uneven last batch


@dataclass(frozen=True)
class CollectiveCall(Event):
    """A collective is about to run: in a hang the last line is what the rank waits for."""

    number: int  # of the call in this process
    op: str  # "allreduce_"
    numel: int  # elements that this rank gives
    dtype: str | None  # "float64"; None without a tensor
    reduce: str | None  # "sum", "max", ...; None where it is not a reduction, or torch does not tell
    in_backward: bool  # called by autograd, as DDP does


@dataclass(frozen=True)
class OptimizerFound(Event):
    """An optimizer is about to make its first step."""

    optimizer: int  # number in this process
    type: str  # name of its class
    names: list[str]  # of its parameters, without prefixes of wrappers
    shapes: list[list[int]]  # of its parameters
    device: str | None  # the GPU of the first parameter, by a name that no other one of the machine has; None: the CPU
    base_lr: list[float | None] = field(default_factory=list)  # by group: the first rate of its scheduler, if any


@dataclass(frozen=True)
class ParametersAdded(Event):
    """An optimizer is about to make its first step with further parameters."""

    optimizer: int  # number in this process
    names: list[str]  # of the further parameters


@dataclass(frozen=True)
class InitialWeights(Event):
    """The parameters of an optimizer before its first step."""

    optimizer: int  # number in this process
    parameters: list[Fingerprint]  # in the order of OptimizerFound.names
    parameter_hash: str  # of the bits of all parameters
    parameter_hashes: list[str]  # of the bits of each


@dataclass(frozen=True)
class OptimizerStep(Event):
    """An optimizer has made a step."""

    optimizer: int  # number in this process
    number: int  # of the step in this process, over all optimizers
    lr: list[float]  # by parameter group
    losses: list[float]  # of the backward calls since the last step
    rows: int  # samples drawn since the last step
    gradients: list[Fingerprint | None]  # before the step; None for a parameter without one
    gradient_norm: float  # of all gradients together
    parameters: list[Fingerprint]  # these and the hashes: after the step
    parameter_hash: str  # of the bits of all parameters
    parameter_hashes: list[str]  # of the bits of each
    buffers: dict[str, Fingerprint]  # of the models, by name
    buffer_hash: str  # of the bits of all buffers
    dtype: str  # of the first parameter; "none" without parameters


@dataclass(frozen=True)
class WeightsBeforeStep(Event):
    """The parameters of an optimizer before a step, where they are others than after its last one."""

    optimizer: int  # number in this process
    number: int  # of the step in this process, over all optimizers
    parameters: list[Fingerprint]  # in the order of OptimizerFound.names
    parameter_hash: str  # of the bits of all parameters
    parameter_hashes: list[str]  # of the bits of each


Weights = Union[InitialWeights, OptimizerStep, WeightsBeforeStep]


@dataclass(frozen=True)
class StateBeforeStep(Event):
    """What a learning rate scheduler or a GradScaler holds before an optimizer step, where that has changed."""

    name: str  # its class, and how many like it were made before: "StepLR 0"
    values: Values  # its public numbers


@dataclass(frozen=True)
class EvaluatedModel(Event):
    """A model that no optimizer trains is called for the first time since the last optimizer step: an average, say."""

    type: str  # name of its class
    parameters: list[Fingerprint]  # in the order of its parameters()


@dataclass(frozen=True)
class BackwardGradients(Event):
    """An optimizer is about to make one of its first steps: this rank's gradients after the last backward."""

    optimizer: int  # number in this process
    gradients: list[Fingerprint | None]  # as in OptimizerStep, of this rank's shards where they are sharded
    factor: float | None  # by which all of them were multiplied since; None where that was not all
    is_sharded: bool  # each rank holds another part of them


@dataclass(frozen=True)
class GradientClip(Event):
    """Gradients are clipped with torch.nn.utils."""

    norm: float  # of the gradients together, before


@dataclass(frozen=True)
class ValidCount(Event):
    """A mean loss counts the targets that are not ignored. 50 per process at most."""

    op: str  # "nll_loss_forward"
    count: float  # of these targets, or the sum of their classes' weights


@dataclass(frozen=True)
class BatchSelection(Event):
    """An operator compares what it is given of the samples of a batch. 50 per process at most."""

    op: str  # "topk"
    rows: int  # samples in the batch


@dataclass(frozen=True)
class SimilarityProduct(Event):
    """A matrix product compares the samples of a batch with each other. 50 per process at most."""

    shape: list[int]  # of the result
    rows: int  # samples in the batch


@dataclass(frozen=True)
class LocalBatchNorm(Event):
    """A BatchNorm layer takes its statistics over one rank's samples. Once per process."""

    rows: int  # size of the first dimension
    channels: int  # size of the second dimension


@dataclass(frozen=True)
class BatchStatistics(Event):
    """A BatchNorm layer takes the statistics of a batch on one process. Once per process, in a controlled run."""

    rows: int  # size of the first dimension


@dataclass(frozen=True)
class UncontrolledDraw(Event):
    """A random draw in which the rows of the batch were not found. Once per operator and place."""

    op: str  # "randperm"
    shape: list[int]  # of the result
    where: str  # "train.py:12 in f"


@dataclass(frozen=True)
class RowDraw(Event):
    """Numbers are drawn at random for the rows of a batch, with gradients. Once per operator and place."""

    op: str  # "native_dropout"
    stream: str  # "torch", "cuda", "numpy", or "generator": one of the script's own
    state: str  # hash of this stream as the process has left it, without what the trace controls
    samples: str  # hash of which samples the batch has
    in_model: bool  # within a forward pass of a model
    where: str  # "train.py:12 in f"


@dataclass(frozen=True)
class NondeterministicOperator(Event):
    """An operator without a deterministic version has run. Once per operator."""

    op: str  # as torch's warning names it


KINDS: dict[str, type[Event]] = {kind.__name__: kind for kind in Event.__subclasses__()}
_FIELDS = {
    kind: {field.name for field in dataclasses.fields(kind)} | {"seconds", "step"}  # type: ignore[arg-type]
    for kind in KINDS.values()
}


# --- lines


def line_of(event: Event, seconds: float, step: int) -> str:
    """Return the line of an event, with its line end."""
    return _encode({"event": type(event).__name__, "seconds": seconds, "step": step, **vars(event)}) + "\n"


def line_start(kind: type[Event]) -> str:
    """Return how every line of a kind begins: counting them needs no parser."""
    return f'{{"event": "{kind.__name__}",'


def event_of(line: str) -> Event | None:
    """Return the event of a line; None for a kind that is not in KINDS.

    Raises ValueError for a line that is not an event: the last one of a process that was killed can be torn.
    """
    try:
        fields = _decode(line)
        kind = KINDS.get(fields.pop("event"))
        return None if kind is None else kind.restored(fields)
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"not an event: {error!r}") from error


def _plain(value: object) -> object:
    """Return what JSON writes for a value that it does not know."""
    return vars(value) if isinstance(value, (ScriptError, ParserOption)) else str(value)


_encode = json.JSONEncoder(default=_plain).encode
_decode = json.JSONDecoder().decode
