"""The first error of a failed run, and the rule that its text points to."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import PurePath

from retrofit.verify.evidence import Run
from retrofit.verify.trace.events import FileChange, FileRead, ScriptError

# What a rank says when another one has left it, and what a helper raises on all ranks for the error of one.
OF_ANOTHER_RANK = re.compile(
    r"connection (closed|reset) by (remote )?peer|broken pipe|gloo|socket|timed out waiting|remote process|"
    r"ProcessGroup|NCCL (error|timeout|communicator)|DistBackendError|rank \d+ failed:|monitored ?barrier|"
    r"KeyboardInterrupt",
    re.IGNORECASE,
)
UNFINISHED_FILE = re.compile(
    r"PytorchStreamReader|unexpected EOF|Ran out of input|not a zip ?file|No such file|corrupt|truncated", re.IGNORECASE
)
UNFINISHED_FILE_TYPES = {
    "FileExistsError",
    "FileNotFoundError",
    "EOFError",
    "BadZipFile",
    "JSONDecodeError",
    "UnpicklingError",
    "ReadError",
    "UnidentifiedImageError",
}
MISSING_OBJECT_TYPES = {"AttributeError", "NameError", "TypeError", "UnboundLocalError"}
PRECISION = re.compile(
    r"\b(double|float|half|scalar type|dtype)\b.*\b(double|float|half|float64|float32)\b", re.IGNORECASE
)
HEADLINE = 140  # characters of an error in the first line of a fault


@dataclass(frozen=True)
class Failure:
    """The first error of a run."""

    rank: int
    type: str
    message: str
    where: str | None
    text: str  # everything that was said about it
    in_setup: bool  # before the first optimizer step
    on_ranks: frozenset[int] = frozenset()  # the ranks with an error of their own

    @property
    def headline(self) -> str:
        """The error in a few words."""
        lines = self.message.strip().splitlines()
        first = lines[0].rstrip(":") if lines else ""
        shown = first if len(first) <= HEADLINE else first[:HEADLINE].rsplit(" ", 1)[0] + " ..."
        return f"{self.type}: {shown}" if shown else self.type

    @property
    def sentence(self) -> str:
        """One line: the error and its place."""
        line = self.message.strip().splitlines()[0] if self.message.strip() else ""
        place = f" at {self.where}" if self.where else ""
        return f"{self.type}: {line[:200]}{place}" if line else f"{self.type}{place}"


def first_failure(run: Run) -> Failure | None:
    """Return the error that came first, of the ranks whose error is their own; None when all only waited for others.

    A rank that lost its connection to another one reports a consequence, however early.
    """
    own: list[tuple[float, Failure]] = []
    for trace in run.ranks:
        end = trace.exit
        if end is None or end.error is None:
            continue
        error = end.error
        log = run.logs[trace.rank] if trace.rank < len(run.logs) else ""
        is_lost = OF_ANOTHER_RANK.search(f"{error.type}: {error.message}")
        if is_lost and "address already in use" not in error.message.lower():
            continue
        text = "\n".join((error.type, error.message, error.traceback, log))
        message = _with_last_line(error, log)
        own.append((end.seconds, Failure(trace.rank, error.type, message, error.where, text, end.step == 0)))
    if not own:
        return None
    _, first = min(own, key=lambda pair: pair[0])
    return replace(first, on_ranks=frozenset(failure.rank for _, failure in own))


def _with_last_line(error: ScriptError, log: str) -> str:
    """Return the message of an error; of an exit with a bare status also what was said last (argparse: why)."""
    said = [line.strip() for line in log.splitlines() if line.strip()]
    is_bare = error.type == "SystemExit" and error.message.strip().isdigit() and said
    return f"{error.message}: {said[-1]}" if is_bare else error.message


def cause_of(failure: Failure, run: Run) -> str | None:
    """Return the code of the cause that an error's text gives away."""
    for code, is_it in _SIGNS:
        if is_it(failure, run):
            return code
    return None


def comes_from_precision(failure: Failure) -> bool:
    """Return whether an error speaks of a mismatch of floating-point types, as double precision can provoke."""
    return bool(PRECISION.search(failure.message))


def _says(*words: str) -> Callable[[Failure, Run], bool]:
    return lambda failure, run: any(word.lower() in failure.text.lower() for word in words)


def _is_wrapper_attribute(failure: Failure, run: Run) -> bool:
    return failure.type == "AttributeError" and bool(
        re.search(
            r"'(DistributedDataParallel|DataParallel|DDPWrapper|FullyShardedDataParallel)' object has no attribute|"
            r"has no attribute 'module'",
            failure.message,
        )
    )


def _is_on_some_ranks(failure: Failure, run: Run) -> bool:
    return run.world_size > 1 and len(failure.on_ranks) < run.world_size


def _is_setup_race(failure: Failure, run: Run) -> bool:
    is_sign = failure.type in UNFINISHED_FILE_TYPES or bool(UNFINISHED_FILE.search(failure.message))
    return is_sign and failure.in_setup and _is_on_some_ranks(failure, run)


def _is_early_read(failure: Failure, run: Run) -> bool:
    """Return whether a rank fails to read what another one writes in the training."""
    is_sign = failure.type in UNFINISHED_FILE_TYPES or bool(UNFINISHED_FILE.search(failure.message))
    if not is_sign or failure.in_setup or not _is_on_some_ranks(failure, run):
        return False
    last_read = run.ranks[failure.rank].of(FileRead)[-1:]
    others = [rank for rank in run.ranks if rank.rank != failure.rank]
    written = {event.path for rank in others for event in rank.of(FileChange) if event.op == "write"}
    return any(f"{PurePath(path).name}'" in failure.message for path in written) or any(
        event.path in written for event in last_read
    )


def _is_writer_race(failure: Failure, run: Run) -> bool:
    return _is_setup_race(failure, run) and "SummaryWriter" in failure.text


def _is_missing_object(failure: Failure, run: Run) -> bool:
    return failure.type in MISSING_OBJECT_TYPES and _is_on_some_ranks(failure, run) and 0 not in failure.on_ranks


def _is_prefix(failure: Failure, run: Run) -> bool:
    return "state_dict" in failure.text and bool(re.search(r'"(module|_orig_mod|_fsdp_wrapped_module)\.', failure.text))


_SIGNS: tuple[tuple[str, Callable[[Failure, Run], bool]], ...] = (
    ("RF201", _says("ran in training outside model(...)")),  # the runtime's
    ("RF204", _says("Expected to have finished reduction", "took no part in the last loss")),
    ("RF205", _says("modified by an inplace operation")),
    ("RF207", _is_wrapper_attribute),
    ("RF502", _is_prefix),
    ("RF601", _says("unrecognized arguments: --local")),
    ("RF602", _says("EADDRINUSE", "address already in use")),
    ("RF604", _says("Duplicate GPU detected", "invalid device ordinal")),
    ("RF503", _says("Attempting to deserialize object on")),
    ("RF402", _says("mismatch between collectives")),
    ("RF505", _is_writer_race),
    ("RF504", _is_setup_race),
    ("RF508", _is_early_read),
    ("RF603", _is_missing_object),
)
