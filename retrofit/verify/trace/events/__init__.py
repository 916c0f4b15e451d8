"""The schema of a trace: what a traced process writes, one line per event, and what `verify` reads.

Each kind of event is a frozen dataclass. A TypedDict would be read without a conversion, but its fields are string
subscripts again, and a field that is missing shows up only where it is used.

A line is a JSON object: "event" is the name of the class, "seconds" and "step" are those of `Event`, and the rest are
the fields of the class. Standard library only: the command line reads what it writes.
"""

from .computation import (
    BackwardCall,
    BackwardGradients,
    BatchNumber,
    BatchSelection,
    BatchStatistics,
    ChangedInForward,
    CollectiveCall,
    EvaluatedModel,
    GradientClip,
    InitialWeights,
    LocalBatchNorm,
    NondeterministicOperator,
    OptimizerFound,
    OptimizerStep,
    PairedRows,
    ParametersAdded,
    RowDraw,
    SimilarityProduct,
    StateBeforeStep,
    SteadyInput,
    UncontrolledDraw,
    UnsyncedForward,
    UntrainedWeights,
    ValidCount,
    Weights,
    WeightsBeforeStep,
)
from .event import (
    OF_DATASET,
    OWN_BATCHES,
    RANDOM_STATE,
    Event,
    Fingerprint,
    Keys,
    Place,
    Record,
    Sample,
    Value,
    Values,
    is_own_batches,
)
from .lines import KINDS, event_of, line_of, line_start
from .output import FileChange, FileLoad, FileLock, FileRead, FileSave, LoggedScalar, MetricRows, OutputLine, RowsCut
from .process import (
    LOCAL_RANK,
    CountedPass,
    DecisionInput,
    DispatchedBatches,
    GroupJoin,
    LineRun,
    ParserOption,
    ParserUse,
    ProcessExit,
    ProcessStart,
    ScriptError,
    SpawnCall,
    TraceError,
    UnevenInputs,
)
from .samples import (
    BatchDrawn,
    BatchPart,
    DrawnAhead,
    EpochCut,
    EpochKept,
    EpochOrder,
    IterationEnd,
    IterationStart,
    LateTraining,
    SampleContents,
    WorkerStreams,
)

__all__ = [
    "KINDS", "LOCAL_RANK", "OF_DATASET", "OWN_BATCHES", "RANDOM_STATE", "BackwardCall", "BackwardGradients",
    "BatchDrawn", "BatchNumber", "BatchPart", "BatchSelection", "BatchStatistics", "ChangedInForward",
    "CollectiveCall", "CountedPass", "DecisionInput", "DispatchedBatches", "DrawnAhead", "EpochCut", "EpochKept",
    "EpochOrder", "EvaluatedModel", "Event", "FileChange", "FileLoad", "FileLock", "FileRead", "FileSave",
    "Fingerprint", "GradientClip", "GroupJoin", "InitialWeights", "IterationEnd", "IterationStart", "Keys",
    "LateTraining", "LineRun", "LocalBatchNorm", "LoggedScalar", "MetricRows", "NondeterministicOperator",
    "OptimizerFound", "OptimizerStep", "OutputLine", "PairedRows", "ParametersAdded", "ParserOption", "ParserUse",
    "Place", "ProcessExit", "ProcessStart", "Record", "RowDraw", "RowsCut", "Sample", "SampleContents", "ScriptError",
    "SimilarityProduct", "SpawnCall", "StateBeforeStep", "SteadyInput", "TraceError", "UncontrolledDraw",
    "UnevenInputs", "UnsyncedForward", "UntrainedWeights", "ValidCount", "Value", "Values", "Weights",
    "WeightsBeforeStep", "WorkerStreams", "event_of", "is_own_batches", "line_of", "line_start",
]  # fmt: skip
