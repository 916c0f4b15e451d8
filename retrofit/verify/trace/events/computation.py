"""Events of a computation: gradients, steps, models, collectives, random numbers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Union

from .event import Event, Fingerprint, Values


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
class UnsyncedForward(Event):
    """An optimizer is about to make a step on gradients of a forward pass that DDP was told not to average."""

    optimizer: int  # number in this process
    number: int  # of the step in this process, over all optimizers
    parameters: list[int]  # of the DDP model, by their places in OptimizerFound.names
    where: str | None  # the line with `no_sync`, else that of the forward pass: "train.py:12 in f"
    in_no_sync: bool  # and not by `require_backward_grad_sync = False` in the script


@dataclass(frozen=True)
class WeightsBeforeStep(Event):
    """The parameters of an optimizer before a step, where they are others than after its last one."""

    optimizer: int  # number in this process
    number: int  # of the step in this process, over all optimizers
    parameters: list[Fingerprint]  # in the order of OptimizerFound.names
    parameter_hash: str  # of the bits of all parameters
    parameter_hashes: list[str]  # of the bits of each


@dataclass(frozen=True)
class ChangedInForward(Event):
    """A forward pass has changed parameters of an optimizer in place before its first step."""

    optimizer: int  # number in this process
    parameters: list[int]  # their places, in the order of OptimizerFound.names
    hashes: list[str]  # of the bits of each before


Weights = Union[InitialWeights, OptimizerStep, WeightsBeforeStep]


@dataclass(frozen=True)
class StateBeforeStep(Event):
    """What a learning rate scheduler or a GradScaler holds before an optimizer step, where that has changed."""

    name: str  # its class, and how many like it were made before: "StepLR 0"
    values: Values  # its public numbers


@dataclass(frozen=True)
class EvaluatedModel(Event):
    """A model is called without gradients, for the first time since the last optimizer step, or with other weights."""

    type: str  # name of its class
    parameters: list[Fingerprint]  # in the order of its parameters(): what this rank holds of them
    is_trained: bool = False  # by an optimizer; else it is an average of the weights, say
    is_sharded: bool = False  # this rank holds a part of each


@dataclass(frozen=True)
class UntrainedWeights(Event):
    """Before an optimizer step: what a model has that no optimizer trains, a target or key network, if it is news."""

    model: int  # number of the model, in the order of the first calls
    type: str  # name of its class
    names: list[str]  # of its parameters that are not trained
    parameters: list[Fingerprint]  # in the same order


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
class SteadyInput(Event):
    """What operators at a line of the training are given is the same in two batches. Once per line and value.

    Neither the samples of the batches have made it, then, nor what is trained. One item per call in a batch.
    """

    op: str  # "mul"
    argument: int  # its number among the arguments
    where: str  # "train.py:12 in f"
    since: int  # optimizer steps finished before the first of the batches
    values: list[Fingerprint | None]  # None: not the same in both batches
    shapes: list[list[int]]  # of the tensors; empty for a number
    names: list[str | None]  # of variables that hold it: "criterion.weight"
    numbers: list[list[float]]  # the first ones


@dataclass(frozen=True)
class BatchSelection(Event):
    """An operator compares what it is given of the samples of a batch. 50 per process at most."""

    op: str  # "topk"
    rows: int  # samples in the batch


@dataclass(frozen=True)
class PairedRows(Event):
    """The samples of a batch are paired with each other, by chance or by their places. Once per process and line."""

    op: str  # "randperm"
    rows: int  # samples in the batch
    where: str  # "train.py:12 in f"
    is_by_part: bool = True  # one process pairs within the part of each rank, too


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
class BatchNumber(Event):
    """A number for a whole batch is drawn, by Python's random or numpy. Once per function and place."""

    op: str  # "random"
    stream: str  # "python", "numpy", or "generator": one of the script's own
    state: str  # hash of this stream as the process has left it, without what the trace controls
    where: str  # "train.py:12 in f"


@dataclass(frozen=True)
class NondeterministicOperator(Event):
    """An operator without a deterministic version has run. Once per operator."""

    op: str  # as torch's warning names it
