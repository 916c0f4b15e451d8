"""Events of a process: how it begins, parses its arguments, decides, joins others and ends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .event import Event


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
