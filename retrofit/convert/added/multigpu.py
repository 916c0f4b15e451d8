"""The functions by which this project trains on many GPUs: the runtime of torch-retrofit 0.1.0.

This file was put here by `retrofit convert` and belongs to your project: commit it. It needs torch alone. Started
without a launcher every function gives back what it was given, so that the script trains on one GPU as before. It is
generated from `retrofit/distributed`; in the kit's repository `python -m retrofit.convert.bundle` writes it.

`retrofit convert --update-runtime` writes the file of the kit that is installed in its place; what you change here
yourself is not overwritten without --force. The names are those of the library: with the kit installed,
`import retrofit.distributed as rd` does the same as `import multigpu as rd`.

In this order: environment, options, collective calls, deadlock, watchdog, process group, measure, collectives, random
state, shown figures, output, devices, batch, sharding, wrapped, streams, batches in turn, loaders, draws, learning
rate, evaluation, loss, unwrap, bit hash, gradients, sync batchnorm, forward guard, consistency, data parallel, entry
points, wrapper, model, launcher.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import copy
import copyreg
import functools
import hashlib
import importlib
import inspect
import io
import json
import logging
import math
import multiprocessing
import operator
import os
import pickle
import random
import re
import runpy
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
import warnings
import weakref
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, MutableMapping, MutableSequence, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, redirect_stdout, suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import cache, lru_cache, partial
from importlib import import_module
from itertools import chain, count, cycle, islice
from multiprocessing import forkserver
from numbers import Number
from pathlib import Path
from types import FrameType, GeneratorType, SimpleNamespace, TracebackType
from typing import Any, NamedTuple, NoReturn, TypeVar, cast
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import nn
from torch._utils import _flatten_dense_tensors, _take_tensors, _unflatten_dense_tensors
from torch.distributed.elastic.multiprocessing.errors import get_error_handler
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.nn.parallel.scatter_gather import scatter_kwargs
from torch.nn.utils.rnn import PackedSequence
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.torch_version import TorchVersion
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, Sampler, get_worker_info
from torch.utils.data.dataloader import _BaseDataLoaderIter

RETROFIT_RUNTIME = "0.1.0"


# ----------------------------------------------------------------------------------------------------------------------
# This process's place in the job, read from the launcher's environment.


LAUNCHER_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
SLURM_VARIABLES = ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID")


@dataclass(frozen=True)
class DistributedEnvironment:
    """One process's place in the job. Without a launcher it is rank 0 of 1."""

    rank: int = 0
    local_rank: int = 0
    world_size: int = 1
    local_world_size: int = 1
    master_addr: str = "localhost"
    master_port: int = 29500
    launcher: str = "none"  # "none" | "env" (torchrun, torch.distributed.launch, by hand) | "slurm"


def read_environment(environ: Mapping[str, str]) -> DistributedEnvironment:
    """Return this process's place from `RANK/WORLD_SIZE/LOCAL_RANK`, else from a SLURM step, else rank 0 of 1.

    Raises ValueError where only some of the three are set, one is not a whole number, or they contradict each other.
    """
    names, launcher, host, port = LAUNCHER_VARIABLES, "env", "localhost", 29500
    present = [name for name in names if environ.get(name)]
    if present and len(present) < len(names):
        raise ValueError(
            f"half of a launcher's environment: {', '.join(f'{name}={environ[name]}' for name in present)} but no "
            f"{' and no '.join(name for name in names if name not in present)}; set all of {', '.join(names)} "
            f"(torchrun does), or unset {' and '.join(present)} for one process"
        )
    if not present:
        # SLURM_STEP_* describe the srun step; SLURM_NTASKS alone is also set in a batch script that runs one process.
        if not environ.get("SLURM_STEP_ID") or _whole_number(environ, "SLURM_STEP_NUM_TASKS", 1) <= 1:
            return DistributedEnvironment()
        names, launcher = SLURM_VARIABLES, "slurm"
        nodes = environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_JOB_NODELIST") or host
        host = re.sub(r"\[(\d+)[^]]*\]", r"\1", nodes).split(",")[0].strip()  # gpu[01-03,7],login: gpu01
        # One port per job, the same on every node, outside the ephemeral range (32768 and up).
        port = 15000 + _whole_number(environ, "SLURM_JOB_ID", 0) % 15000
    rank, world_size, local_rank = (_whole_number(environ, name) for name in names)
    if not 0 <= local_rank <= rank < world_size:
        raise ValueError(
            f"contradictory launcher environment: {names[0]}={rank} {names[2]}={local_rank} {names[1]}={world_size}; "
            f"need 0 <= {names[2]} <= {names[0]} < {names[1]}"
        )
    num_local = _whole_number(environ, "LOCAL_WORLD_SIZE", local_rank + 1)
    if launcher == "slurm":
        tasks_per_node = re.match(r"\d+", environ.get("SLURM_STEP_TASKS_PER_NODE", ""))  # "2(x3),1"
        num_local = int(tasks_per_node[0]) if tasks_per_node else 1
    host, port = environ.get("MASTER_ADDR") or host, _whole_number(environ, "MASTER_PORT", port)
    return DistributedEnvironment(rank, local_rank, world_size, num_local, host, port, launcher)


def _whole_number(environ: Mapping[str, str], name: str, default: int | None = None) -> int:
    value = environ.get(name, "")
    if value == "" and default is not None:
        return default
    try:
        return int(value)
    except ValueError:
        raise ValueError(
            f"{name} must be a whole number, got {value!r}; let the launcher set it, or unset it"
        ) from None


# ----------------------------------------------------------------------------------------------------------------------
# The runtime's options: a table of flags with environment twins, and the values of this process.


MOST_RANKS = 2**20
SWITCH = {"0": False, "1": True, "false": False, "true": True}


@dataclass(frozen=True)
class RuntimeFlag:
    """One runtime option: how a parser declares it and how its environment twin is read."""

    name: str
    default: Any
    help: str
    type: type = str
    choices: tuple[Any, ...] | None = None
    aliases: tuple[str, ...] = ()
    bounds: tuple[float, float] | None = None  # of a number, both included

    @property
    def environment_twin(self) -> str:
        return f"RETROFIT_{self.name.upper()}"

    def parse(self, text: str) -> Any:
        """Return the value that `text` is. Raises argparse.ArgumentTypeError, which says what is allowed."""
        allowed = ", ".join(map(str, self.choices or (SWITCH if self.type is bool else (self.type.__name__,))))
        if self.bounds is not None:
            allowed += f" from {self.bounds[0]:g} to {self.bounds[1]:g}"
        with suppress(KeyError, ValueError, OverflowError):
            value = SWITCH[text.lower()] if self.type is bool else self.type(text)
            is_inside = self.bounds is None or self.bounds[0] <= value <= self.bounds[1]  # nan is not
            if is_inside and value in (self.choices or (value,)):
                return value
        raise argparse.ArgumentTypeError(f"{text!r} is not valid; use one of: {allowed}")


DDP_FLAGS = (
    RuntimeFlag("distributed", False, "train in a process group; without a launcher a real group of one process "
                "(default: only when a launcher started more than one process)", bool),
    RuntimeFlag("local_rank", -1, "index of this process's GPU on its node; a launcher's LOCAL_RANK wins (default: -1, "
                "from the environment)", int, None, ("--local-rank",), (-1, MOST_RANKS)),  # alias: since torch 2.0
    RuntimeFlag("dist_url", "env://", "where the processes meet: env:// or tcp://HOST:PORT (default: %(default)s)"),
    RuntimeFlag("dist_backend", "auto", "communication backend (default: %(default)s = nccl on CUDA, gloo on CPU)",
                choices=("auto", "nccl", "gloo")),
    RuntimeFlag("dist_timeout", 1800.0, "seconds a collective waits for the slowest rank (default: %(default)s)",
                float, bounds=(0.001, 1e7)),
    RuntimeFlag("batch", "per_gpu", "what the batch size counts: samples per GPU, or per optimizer step over all GPUs "
                "(default: %(default)s)", choices=("per_gpu", "global")),
    RuntimeFlag("lr_scale", "linear", "learning rate factor for global batch / batch size; none switches it off "
                "(default: %(default)s)", choices=("linear", "sqrt", "none")),
    RuntimeFlag("find_unused_parameters", False, "let DDP itself look in every step for parameters that take no part "
                "in the loss; slower (default: off, the runtime finds them)", bool),
)  # fmt: skip

FLAGS: dict[str, RuntimeFlag] = {flag.name: flag for flag in DDP_FLAGS}  # other modules may add theirs
BATCHNORM = RuntimeFlag("batchnorm", "sync", "statistics of all ranks, or each its own", choices=("sync", "local"))
CONSISTENCY = RuntimeFlag(  # as BATCHNORM a variable, without a flag
    "consistency", "first", "when the ranks compare their parameters", choices=("off", "first", "always")
)
OTHER_TWINS = (
    *("RETROFIT_STRATEGY", "RETROFIT_WHY", "RETROFIT_WHY_FOLDER"),
    *(BATCHNORM.environment_twin, CONSISTENCY.environment_twin),
)
_values: dict[str, Any] = {}  # of this process: given to a parser or to setup_distributed


def add_runtime_flags(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Add the runtime flags to a parser that knows nothing of them, and return it.

    They leave no trace in the parsed options: what is given goes to `setup_distributed` directly. A flag that the
    parser has already, or that would end the use of an abbreviation (`--batch` for `--batch_size`), is called
    `--dist_<flag>` instead. One rank per node reports what the parser refuses; the others exit with status 2.
    """
    group = parser.add_argument_group("distributed training", "each flag has an environment twin RETROFIT_<FLAG>")
    report_on_one_rank(parser, os.environ)
    for flag in DDP_FLAGS:
        names = [name for name in (f"--{flag.name}", *flag.aliases) if _is_free(parser, name)]
        kind: dict[str, Any] = {"nargs": 0} if flag.type is bool else {"type": flag.parse, "choices": flag.choices}
        kind.update(dest=flag.name, default=argparse.SUPPRESS, help=flag.help.replace("%(default)s", str(flag.default)))
        group.add_argument(*names or [f"--dist_{flag.name}"], action=_Remember, **kind)
    return parser


def get_option(name: str) -> Any:
    """Return the value of a runtime option. Raises ValueError for a twin whose value its flag would refuse."""
    return _values[name] if name in _values else read_twin(FLAGS[name])


def set_options(args: argparse.Namespace) -> None:
    """Let `get_option` answer from `args`, also after `setup_distributed`. Every rank must, with the same options."""
    _values.update({name: value for name, value in vars(args).items() if name in FLAGS})


def unread_twins(environ: Mapping[str, str]) -> list[str]:
    """Return the variables that look like an option and are none: misspelt, or of a part that is not loaded."""
    known = {*OTHER_TWINS, *(flag.environment_twin for flag in FLAGS.values())}
    return sorted(name for name in environ if name.startswith("RETROFIT_") and name not in known)


def forget_options() -> None:
    """Forget what was given: the environment twins and the defaults count again."""
    _values.clear()


def read_twin(flag: RuntimeFlag, environ: Mapping[str, str] = os.environ) -> Any:
    """Return what the environment says about a flag, else its default. Raises ValueError for a value it refuses."""
    text = environ.get(flag.environment_twin)
    try:
        return flag.parse(text) if text else flag.default
    except argparse.ArgumentTypeError as refusal:
        raise ValueError(f"{flag.environment_twin}={refusal}, or unset it") from None


def report_on_one_rank(parser: argparse.ArgumentParser, environ: Mapping[str, str]) -> None:
    """Let one rank per node report what the parser refuses; the others exit with status 2 in silence."""
    if environ.get("LOCAL_RANK", "0") not in ("", "0"):
        parser.error = lambda message: parser.exit(2)  # type: ignore[method-assign, assignment]


class _Remember(argparse.Action):
    """Keeps the value for setup_distributed instead of putting it into the namespace."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        _values[self.dest] = True if self.nargs == 0 else values


def _is_free(parser: argparse.ArgumentParser, name: str) -> bool:
    """Return whether a flag of this name changes nothing for those who use the parser's own flags."""
    taken = parser._option_string_actions
    abbreviates = getattr(parser, "allow_abbrev", True) and any(own.startswith(name) for own in taken)
    return name not in taken and not abbreviates


# ----------------------------------------------------------------------------------------------------------------------
# The journal of a rank's runtime collectives: which one it is in, where it was called, and which came before.


Decorated = TypeVar("Decorated", bound=Callable[..., Any])
PACKAGE = __name__.removesuffix(".failure.collective_calls")  # the runtime, or the one module that it became
LIBRARIES = ("contextlib", "functools", "torch")  # what a call may pass through on its way from the script

turns: list[Any] = []  # of `main_process_first`: the one that this rank is in
before_collectives: list[Callable[[str], Any]] = []  # what other modules add: called with the function's name
_journal: Journal | None = None


class Call(NamedTuple):
    """One call of a runtime collective, the outermost if one calls another."""

    number: int
    name: str
    site: str  # FILE:LINE of the script
    begun: tuple[int, ...]  # collectives of torch that this rank has begun since the call before


class Journal:
    """The calls of the thread that makes it; `counters` returns how many collectives it has begun in each group."""

    def __init__(self, counters: Callable[[], tuple[int, ...]]) -> None:
        self.calls: deque[Call] = deque(maxlen=16)
        self.open: Call | None = None
        self.opened_at = 0.0
        self.finished = 0  # calls
        self.thread = threading.get_ident()
        self._counters = counters
        self._after_last = counters()

    def begun(self) -> tuple[int, ...]:
        """Return how many collectives of torch this rank has begun since its last runtime collective."""
        return tuple(now - before for now, before in zip(self._counters(), self._after_last))

    @contextmanager
    def noting(self, function: str) -> Iterator[None]:
        """Note the call of a collective, from its begin to its end."""
        name, frame = called_from(sys._getframe(3))
        call = Call(self.finished, name or function, f"{frame.f_code.co_filename}:{frame.f_lineno}", self.begun())
        self.calls.append(call)
        self.opened_at = time.monotonic()
        self.open = call
        try:
            yield
        finally:
            self._after_last = self._counters()
            self.finished += 1
            self.open = None


def start_journal(counters: Callable[[], tuple[int, ...]]) -> Journal:
    """Keep a journal from now on; see `Journal`."""
    global _journal
    _journal = Journal(counters)
    return _journal


def stop_journal() -> None:
    """Keep no journal any more."""
    global _journal
    _journal = None


def collective(function: Decorated) -> Decorated:
    """Decorate a function that every rank must call, so that a rank which waits in it can be told why."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if turns:
            raise RuntimeError(
                f"{function.__name__} is called inside `with main_process_first():`, where the ranks run one after "
                "another: it would wait for ranks that cannot come; call it before or after that block"
            )
        journal = _journal
        is_within = journal is not None and (journal.open is not None or journal.thread != threading.get_ident())
        for hook in () if is_within else before_collectives:
            hook(function.__name__)
        if journal is None or is_within:
            return function(*args, **kwargs)
        with journal.noting(function.__name__):
            return function(*args, **kwargs)

    return call  # type: ignore[return-value]


def called_from(frame: FrameType) -> tuple[str, FrameType]:
    """Return the runtime function that the script called, and the script's frame that called it."""
    name, inner = "", frame
    for inner, _ in traceback.walk_stack(frame):
        module = inner.f_globals.get("__name__", "")
        if f"{module}.".startswith(f"{PACKAGE}."):
            name = inner.f_code.co_name
        elif module.partition(".")[0] not in LIBRARIES:
            break
    return name, inner


# ----------------------------------------------------------------------------------------------------------------------
# Reports of each rank to the others, and the proof from them that the job cannot continue.


PATIENCE_S = 5.0  # how long a rank waits before anything is suspected
INSTALLED = ("<frozen", os.path.dirname(os.__file__), os.path.dirname(torch.__path__[0]))  # files of libraries
REMEDY = "every rank must call it, also those that write nothing: take it out of `if is_main_process():`"
UNKNOWN: dict[str, Any] = {"beat": 0, "process": {"pid": "?", "host": "?"}, "finished": 0, "begun": [], "calls": []}
UNKNOWN |= {"step": "not known", "where": "a place that it has not told", "waits_s": 0.0, "left": ""}

State = Mapping[str, Any]


def is_slow(state: State) -> bool:
    """Return whether a rank may still come: it neither waits nor has ended, as far as is known."""
    return not (state["left"] or state["waits_s"] >= PATIENCE_S)


def judge(states: Sequence[State]) -> str:
    """Return why the ranks wait for each other for good; "" if they may not. `states`: of all ranks, in order."""
    if any(is_slow(state) for state in states):
        return ""
    for number in sorted({call[0] for state in states for call in state["calls"]}):
        made = {state["rank"]: call for state in states for call in state["calls"] if call[0] == number}
        names = [call[1] for call in made.values()]
        name = min(names, key=names.count)  # of two calls with one number the rarer one is wrong
        came = [rank for rank, call in made.items() if call[1] == name]
        call, absent = made[came[0]], {}
        for state in states:
            other = made.get(state["rank"])
            passed = state["left"] or any(now > then for now, then in zip(state["begun"], call[3]))
            if other and other[1] != name:
                absent[state["rank"]] = f"called {other[1]} instead, at {other[2]}; its step is {state['step']}"
            elif not other and state["finished"] == number and passed:
                absent[state["rank"]] = ("" if state["left"] else "went past it and ") + _status(state)
        if absent:
            lines = [
                f"{name} was called by {_rank_names(came)} at {call[2]}, but not by {_rank_names(absent)}; {REMEDY}"
            ]
            lines += [f"rank {rank} {why}" for rank, why in absent.items()]
            return "\n".join([*lines, *_first_difference(states[came[0]], states[next(iter(absent))], number)])
    waiting = next((state for state in states if not state["left"]), None)
    return explain(states, waiting) if waiting and any(state["left"] for state in states) else ""


def explain(states: Sequence[State], asking: State, silent: Sequence[int] = ()) -> str:
    """Return which ranks `asking` has waited for in vain. `silent`: those that do not answer."""
    missing = [state for state in states if state["left"] or state["rank"] in silent]
    missing = missing or [state for state in states if state["rank"] != asking["rank"] and not state["waits_s"]]
    first = f"rank {asking['rank']} waited in {asking['where']}"
    if not missing:
        return f"{first}; all ranks are there and wait for each other: each shows its place above"
    lines = [f"rank {state['rank']} {_status(state, state['rank'] in silent)}" for state in missing]
    return "\n".join([f"{first} for a rank that is missing", *lines])


def _status(state: State, is_silent: bool = False) -> str:
    if state["left"]:
        return f"{state['left']}; its step was {state['step']}"
    if is_silent:
        name = f"process {state['process']['pid']} on {state['process']['host']}, at its end, killed or stopped"
        return f"does not answer: {name}, last seen in {state['where']}; its step was {state['step']}"
    return f"{'waits' if state['waits_s'] else 'did not come, it is'} in {state['where']}; its step is {state['step']}"


def _first_difference(one: State, other: State, number: int) -> list[str]:
    """Return a line on a call before `number` that two ranks made at different places, which may have parted them."""
    theirs = {call[0]: call for call in other["calls"]}
    return [
        f"before that {call[1]} at {call[2]} on rank {one['rank']} met {met[1]} at {met[2]} on rank {other['rank']}: "
        "one of them is not called by every rank"
        for call in one["calls"]
        if call[0] < number and (met := theirs.get(call[0], call))[2] != call[2]
    ][:1]


def _rank_names(ranks: Any) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def place_of(frame: FrameType | None) -> str:
    """Return where in the script a thread is: the innermost frame that is neither of the runtime nor of a library."""
    if frame is None:
        return "a thread that has ended"
    own = called_from(frame)[1]
    outer = (frame for frame, _ in traceback.walk_stack(own))
    own = next((frame for frame in outer if not frame.f_code.co_filename.startswith(INSTALLED)), own)
    return f"{own.f_code.co_name} ({own.f_code.co_filename}:{own.f_lineno})"


# ----------------------------------------------------------------------------------------------------------------------
# The end of a job in which a rank fails, vanishes or waits in vain: one readable report, exit status 1 on every rank.


PERIOD_S = 1.0  # and 5 ms more for each rank: they all ask the same store
GRACE_S = 3.0  # for what other ranks' threads do, on top of their period
LAUNCHER_S = 1.0  # for torchrun to find the rank that failed first; of several that it finds at once it names any
OUTPUT_S = 0.5  # for what another rank has printed to be on the screen before the last message
# Where a main thread is that waits for another rank in torch's own code; a loader or a download is another matter.
WAITING_MODULES = ("torch.distributed", "torch.nn.parallel", "torch.autograd", "torch._tensor")
NEWS_S = 2.0  # between the error of one rank and the loss of its connections on another: milliseconds
# What gloo, NCCL and the store say on a rank that has waited for another one in vain.
WAITED_IN_VAIN = re.compile(
    r"Timed out waiting \d+ ?ms|monitoredBarrier|collective operation timeout|[Ww]ait timeout after \d+ ?ms|"
    r"Application timeout caused pair closure|was called by rank \d+, but not by rank|"
    r"onnection (closed|reset)|Broken pipe|remote process exited|communicator was aborted"
)
PEER_FAILED = re.compile(r"rank \d+ failed: |\w+ failed on rank \d+: ")  # what the runtime says of another rank's error


@dataclass
class JobHooks:
    """What the production parts of the runtime add where they are imported (`job/`)."""

    own_store: Callable[..., Any] = lambda *place: None  # the store to meet in, None for torch's own choice
    identity: Callable[[], Any] = lambda: {"pid": os.getpid(), "host": socket.gethostname()}
    watched: Callable[[Any], Any] = lambda watchdog: None  # a watchdog has started; at its end: None
    reported: Callable[[str], Any] = lambda text: None  # told what this rank has printed of the job's end
    end_silent: Callable[[Sequence[State]], list[str]] = lambda states: []  # returns what to say of these ranks
    leave: Callable[[], Any] = lambda: None  # before this process leaves its job, in whatever way


JOB_HOOKS = JobHooks()
_step = "what precedes the first step"


def begin_step(step: str) -> None:
    """Note which step this rank is in, as in "step 7 of epoch 2": a rank that hangs says it."""
    global _step
    _step = step


def place_of_error(error: BaseException) -> str:
    """Return where in the script an error was raised."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    return place_of(frames[-1]) if frames else "code without a traceback"


def record_error(error: Exception) -> None:
    """Leave an error for torchrun's report, which shows what is being handled; nothing happens without torchrun."""
    try:
        raise error
    except Exception:
        get_error_handler().record_exception(error)


class End(NamedTuple):
    """The end of the job: the rank that was the first to find it, and whether by an error of its own."""

    rank: int
    is_error: bool


class Watchdog:
    """The thread of one rank and what it shares with the main thread."""

    def __init__(self, store: Any, counters: Callable[[], tuple[int, ...]], rank: int, world_size: int) -> None:
        self.rank, self.world_size, self.left, self.is_reporting = rank, world_size, "", False
        self.period_s = PERIOD_S + world_size / 200
        # A connection of its own: a main thread that waits in the store would keep this one out.
        self._store, self.store_is_gone = store.clone() if hasattr(store, "clone") else store, False
        self._store.set_timeout(timedelta(seconds=PATIENCE_S))
        self._process, self._journal = JOB_HOOKS.identity(), start_journal(counters)
        self._seen: Any = None  # what has not changed since
        self._since = 0.0
        self._waited: dict[str, Any] = {}  # told in place of what can be seen, once the main thread has an error
        self._stopped, self._said = threading.Event(), threading.Lock()
        self._previous_hook, sys.excepthook = sys.excepthook, self._report_uncaught
        self.tell()
        self._thread = threading.Thread(target=self._watch, name="retrofit-watchdog", daemon=True)
        self._thread.start()

    def stop(self, left_together: bool) -> None:
        self._stopped.set()
        if self._thread is not threading.current_thread():
            self._thread.join(GRACE_S)
        if sys.excepthook == self._report_uncaught:
            sys.excepthook = self._previous_hook
        if not left_together:  # or the store may be gone by now, and torch says so
            error = getattr(sys, "last_value", None)
            self.left = self.left or f"has ended {f'with {type(error).__name__}: {error}' if error else 'its program'}"
            self.tell(left=self.left, where="", waits_s=0.0)
        stop_journal()

    # What the ranks know of each other, through the store

    def _ask(self, operation: str, key: str, *values: str) -> Any:
        """Return the store's answer, None once it is gone: it is in rank 0 or the launcher, which may have died."""
        try:
            return None if self.store_is_gone else getattr(self._store, operation)(f"retrofit/{key}", *values)
        except Exception:
            self.store_is_gone = True
        return None

    def _read(self, key: str) -> Any:
        text = self._ask("compare_set", key, "null", "null")  # null where there is none; torch 2.1 has no Store.check
        return None if text is None else json.loads(text)

    def tell(self, **known: Any) -> State:
        """Look at this process's main thread, from whichever thread, and tell the other ranks; return what is told."""
        now, begun = time.monotonic(), self._journal.begun()  # before the call: it is noted before it begins
        call, finished = self._journal.open, self._journal.finished
        frame = sys._current_frames()[threading.main_thread().ident or 0]
        if (seen := (id(frame), frame.f_lasti, begun, finished)) != self._seen:
            self._seen, self._since = seen, now
        # On a GPU the thread waits, and computes, wherever it needs a result; what it waits for has been begun.
        has_begun = any(begun) and torch.cuda.is_available() and torch.cuda.is_initialized()
        waits = has_begun or frame.f_globals.get("__name__", "").startswith(WAITING_MODULES)
        since = self._journal.opened_at if call else self._since if waits else now
        state = {"rank": self.rank, "process": self._process, "beat": now, "left": "", "step": _step}
        state |= {"where": place_of(frame), "finished": finished, "calls": list(self._journal.calls), "begun": begun}
        state |= {"waits_s": now - since, **self._waited, **known}
        self._ask("set", f"state/{self.rank}", json.dumps(state))
        return state

    def state_of(self, rank: int) -> State:
        return self._read(f"state/{rank}") or {"rank": rank, **UNKNOWN}

    def silent_ranks(self) -> list[int]:
        """Wait until every other rank has said something or has left; return those that do neither for long."""
        deadline = time.monotonic() + self.period_s + GRACE_S
        beats = {rank: self.state_of(rank)["beat"] for rank in range(self.world_size) if rank != self.rank}
        while beats and time.monotonic() < deadline and not self.store_is_gone:
            self.tell()
            time.sleep(0.05)
            states = [self.state_of(rank) for rank in beats]
            beats = {s["rank"]: s["beat"] for s in states if not s["left"] and s["beat"] == beats[s["rank"]]}
        return list(beats)

    def end(self, within_s: float = 0.0) -> End | None:
        """Return the end of the job, once a rank has found it within that time."""
        deadline = time.monotonic() + within_s
        while (found := self._read("end")) is None and time.monotonic() < deadline and not self.store_is_gone:
            time.sleep(0.05)
        return None if found is None else End(*found)

    def _claim_end(self, is_error: bool) -> End:
        """Return the end of the job, which is from this rank unless another one was faster."""
        found = self._ask("compare_set", "end", "", json.dumps([self.rank, is_error]))
        return End(self.rank, is_error) if found is None else End(*json.loads(found))

    # The thread

    def _watch(self) -> None:
        while not self._stopped.wait(self.period_s) and not self.store_is_gone:
            waits = self.tell()["waits_s"] >= PATIENCE_S
            end = self.end()
            if end and not end.is_error:
                self.show_and_exit("the job cannot continue")
            elif end and waits and end.rank != self.rank:  # it keeps its connections until its process ends
                self._say_once(
                    [f"stopped: rank {end.rank} failed first, see its message (its process has not ended yet)"]
                )
                time.sleep(GRACE_S if self.rank == 0 else 0.0)  # for the others to find out: the store may be here
                _end_process()
            elif waits and (reason := self._deadlock()):
                self.show_and_exit("the ranks wait for each other", reason)

    def _deadlock(self) -> str:
        """Return why no rank can continue, "" while one can."""
        states: list[State] = []
        for rank in range(self.world_size):
            states.append(self.state_of(rank))
            if is_slow(states[-1]):
                return ""
        return judge(states)

    def show_and_exit(self, headline: str, reason: str = "") -> None:
        """End this process, whose main thread waits for good; another thread calls this."""
        stack = traceback.format_stack(sys._current_frames()[threading.main_thread().ident or 0])
        headline = f"{headline}; this rank is in {self.tell()['step']}, here:"
        self._end_job([headline, *"".join(stack).splitlines()], reason)
        _end_process()

    # In either thread

    def _end_job(self, lines: Sequence[str], reason: str = "") -> None:
        """Show `lines` and return when one rank, the first to come here, has said why the job ends, or `reason`."""
        if self._say_once(lines) and self._claim_end(False) == (self.rank, False):
            self._conclude(reason)
        deadline = time.monotonic() + 2 * (self.period_s + GRACE_S) + OUTPUT_S
        while not self.store_is_gone and not self._read("concluded") and time.monotonic() < deadline:
            self.tell()
            time.sleep(0.05)

    def _conclude(self, reason: str) -> None:
        """Say why the job ends, after all other ranks have shown themselves, and have the launcher repeat it."""
        silent = self.silent_ranks()
        time.sleep(OUTPUT_S)
        own = self.tell()
        states = [own if rank == self.rank else self.state_of(rank) for rank in range(self.world_size)]
        text = reason or judge(states) or explain(states, own, silent)
        if self.store_is_gone:
            gone = "the store of the group is gone, and with it the process that has it: rank 0, or the launcher"
            text = f"rank {self.rank} waited in {own['where']}; {gone}"
        lines = [*text.splitlines(), *JOB_HOOKS.end_silent([states[rank] for rank in silent])]
        self._say(lines)
        record_error(RuntimeError("\n".join(lines)))
        self._ask("set", "concluded", "true")

    def _say(self, lines: Sequence[str]) -> None:
        text = "\n".join(f"[rank {self.rank}/{self.world_size}] {line}" for line in lines)
        print(f"\n{text}", file=sys.stderr, flush=True)  # a progress bar leaves its line open
        JOB_HOOKS.reported(text)

    def _say_once(self, lines: Sequence[str]) -> bool:
        """Print what one of this process's threads shall print; return whether it was this one."""
        is_first = self._said.acquire(blocking=False)
        if is_first:
            self._say(lines)
        return is_first

    # In the main thread, which has an error

    def _report_uncaught(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        """Report an uncaught error, as `sys.excepthook`; Ctrl-C is one line of rank 0."""
        if isinstance(error, KeyboardInterrupt):
            if self.rank == 0:
                self._say([f"interrupted in {place_of_error(error.with_traceback(trace))}"])
        elif isinstance(error, Exception) and _watchdog is self:  # not once it has stopped
            self.report(error.with_traceback(trace))
        else:
            self._previous_hook(kind, error, trace)

    def report(self, error: Exception) -> None:
        """Print this rank's part of the story, and leave it for torchrun's report if it is the cause."""
        lines = "".join(traceback.format_exception(type(error), error, error.__traceback__)).splitlines()
        if getattr(error, "is_explained", False) is True:
            lines = [f"{type(error).__name__}: {error}"]
        self.is_reporting, self.left = True, f"has failed with {type(error).__name__}"
        if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # which torchrun sends when another rank has gone
        waited = isinstance(error, RuntimeError) and WAITED_IN_VAIN.search(str(error)) is not None
        end = self.end(NEWS_S if waited or PEER_FAILED.match(str(error)) else 0.0)
        if waited and not (end and end.is_error):
            self._waited = {"where": place_of_error(error), "waits_s": PATIENCE_S}
            self._end_job([f"waited in vain for another rank, in {self.tell()['step']}:", *lines])
            return
        end = end or self._claim_end(True)
        if end.is_error and end.rank != self.rank:
            self._say_once([f"stopped: rank {end.rank} failed first, see its message ({type(error).__name__} here)"])
            time.sleep(LAUNCHER_S if "TORCHELASTIC_RUN_ID" in os.environ else 0.0)
        else:
            record_error(error)
            self._say(lines)


def _end_process() -> None:
    """End this process while its main thread waits for good."""
    JOB_HOOKS.leave()
    sys.stdout.flush()
    os._exit(1)


_watchdog: Watchdog | None = None


def start_watchdog(store: Any, counters: Callable[[], tuple[int, ...]], rank: int, world_size: int) -> None:
    """Watch this process of a group of several until `stop_watchdog`; `store` and `counters` are the group's."""
    global _watchdog
    stop_watchdog()
    _watchdog = Watchdog(store, counters, rank, world_size)
    JOB_HOOKS.watched(_watchdog)
    atexit.register(stop_watchdog)  # a thread must not be in the store when the interpreter goes


def stop_watchdog(*, left_together: bool = False) -> None:
    """End the thread, if there is one. Unless all ranks are done, tell the others that this one is."""
    global _watchdog
    if _watchdog is not None:
        atexit.unregister(stop_watchdog)
        JOB_HOOKS.watched(None)
        _watchdog.stop(left_together)
    _watchdog = None


# ----------------------------------------------------------------------------------------------------------------------
# Join and leave the job's process group, and ask for this process's place in it.


F = TypeVar("F", bound=Callable[..., Any])

# What other modules add to joining and leaving the group; every rank calls it.
before_joining: list[Callable[[], Any]] = []
before_leaving: list[Callable[[], Any]] = []  # not while an error passes

_place = DistributedEnvironment()
_control_group: dist.ProcessGroup | None = None
_left: list[Any] = []  # backends of the group that was left last


def setup_distributed(
    args: argparse.Namespace | None = None,
    *,
    backend: str | None = None,
    init_method: str | None = None,
    timeout_s: float | None = None,
) -> tuple[int, int, int]:
    """Join the process group that the launcher asks for and return `(rank, local_rank, world_size)`.

    Collective: every rank. Options come from the keywords, else from `args` (see `add_runtime_flags`), else from the
    environment twins. Without a launcher and without `--distributed` nothing happens and the result is `(0, 0, 1)`;
    with `--distributed` alone it is a real group of one process. On CUDA the process's GPU becomes the current device.

    Raises ValueError for a contradictory environment, a local rank without a GPU or a backend this machine lacks, and
    RuntimeError when the processes cannot meet (port in use, master not reachable).
    """
    global _place, _control_group
    if dist.is_initialized():
        return get_rank(), get_local_rank(), get_world_size()
    set_options(args or argparse.Namespace())
    options = {name: get_option(name) for name in FLAGS}
    for hook in before_joining:
        hook()
    place = read_environment(os.environ)
    if place.launcher == "none":
        place = replace(place, local_rank=max(0, options["local_rank"]))
    backend = _resolve_backend(backend or options["dist_backend"])
    if torch.cuda.is_available():
        torch.cuda.set_device(gpu_index(place, torch.cuda.device_count()))
    for name in unread_twins(os.environ) if place.rank == 0 else ():
        print(f"notice: {name} has no effect: it is not an option of the runtime that this script uses")
    if not options["distributed"] and place.world_size == 1:
        _place = place
        return 0, place.local_rank, 1
    if not options["distributed"] and place.rank == 0:
        print(f"notice: started with WORLD_SIZE={place.world_size}: training is distributed (--distributed says so)")
    timeout = timedelta(seconds=timeout_s if timeout_s is not None else options["dist_timeout"])
    _join(place, backend, init_method or options["dist_url"], timeout)
    _control_group = dist.new_group(backend="gloo", timeout=timeout)  # type: ignore[assignment]
    _place = place
    if place.world_size > 1:
        store = dist.distributed_c10d._get_default_store()
        start_watchdog(store, begun_collectives, place.rank, place.world_size)
    return place.rank, place.local_rank, place.world_size


def cleanup_distributed() -> None:
    """Leave the process group; nothing happens outside one. Collective: every rank (not while an error passes).

    A checkpoint that is still being written in the background comes first; its errors are raised here.
    """
    global _place, _control_group
    ends_well = sys.exc_info()[0] is None
    for hook in before_leaving if ends_well else ():
        hook()
    forget_options()
    if dist.is_initialized():
        if ends_well:
            barrier()  # a rank that closes its sockets early can break a slower rank's last collective
        stop_watchdog(left_together=ends_well)
        if TorchVersion(torch.__version__) < "2.8" and "gloo" in dist.get_backend():
            # There a gloo backend that is freed with its group, or with a model wrapped in it, waits for its threads
            # and keeps the interpreter's lock, which one of them may want. Freed by Python it does not keep the lock.
            cpu, groups = torch.device("cpu"), (dist.group.WORLD, _control_group)
            _left[:] = [group._get_backend(cpu) for group in groups if group is not None]
            del groups
        dist.destroy_process_group()
    JOB_HOOKS.leave()
    _control_group, _place = None, DistributedEnvironment()


def is_distributed() -> bool:
    """Return whether this process is in a process group (also one of a single process)."""
    return dist.is_available() and dist.is_initialized()


def get_rank() -> int:
    """Return this process's index in the job, 0 outside a group."""
    return dist.get_rank() if is_distributed() else 0


def get_world_size() -> int:
    """Return the number of processes in the job, 1 outside a group."""
    return dist.get_world_size() if is_distributed() else 1


def get_local_rank() -> int:
    """Return this process's index on its node, 0 outside a group."""
    return _place.local_rank


def one_process_only(reason: str, function: F | None = None) -> F | None:
    """Raise RuntimeError in a job of several processes, for this reason; with a `function`, when that is called.

    In one process return the function.
    """
    caller, world_size = sys._getframe(1), read_environment(os.environ).world_size

    def refuse(*args: Any, **options: Any) -> NoReturn:
        place = f"{os.path.basename(caller.f_code.co_filename)}:{caller.f_lineno}"
        remedy = "start this in one process, without a launcher, or choose another option"
        raise RuntimeError(f"{place}: {reason}, and {world_size} processes were started; {remedy}")

    return function if world_size == 1 else refuse() if function is None else cast(F, refuse)


def is_main_process() -> bool:
    """Return whether this process is rank 0, which prints and writes files; without a group the launcher says so."""
    return (dist.get_rank() if is_distributed() else read_environment(os.environ).rank) == 0


def get_device() -> torch.device:
    """Return the device this process trains on: its own GPU, or the CPU where there is none."""
    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")


def control_group() -> dist.ProcessGroup | None:
    """Return the gloo group for what is not a tensor of the training; None = the default group.

    There a call by one rank alone could meet DDP's gradients, and gloo ends a process where sizes differ.
    """
    return _control_group


def group_for(tensor: torch.Tensor) -> dist.ProcessGroup | None:
    """Return the group in which the runtime combines `tensor`: `control_group`, of a GPU tensor the default."""
    return _control_group if tensor.device.type == "cpu" else None


def begun_collectives() -> tuple[int, ...]:
    """Return how many collectives this rank has begun, by backend of the default group; () if they do not count."""
    try:
        world: Any = dist.group.WORLD
        return tuple(world._get_backend(device)._get_sequence_number_for_group() for device in world._device_types)
    except (AttributeError, RuntimeError):
        return ()


@collective
def barrier() -> None:
    """Wait until every rank is here; nothing happens outside a group. Collective: every rank."""
    if is_distributed() and "nccl" in dist.get_backend():
        dist.barrier(device_ids=[torch.cuda.current_device()])
    elif is_distributed():
        dist.barrier(control_group())


def require_group(caller: str) -> None:
    """Raise where a launcher has started several processes that are not one job: each would train for itself."""
    world_size = os.environ.get("WORLD_SIZE", "1")
    if world_size != "1" and not is_distributed():
        raise RuntimeError(
            f"{caller} was called outside the process group, in one of {world_size} processes; call "
            "setup_distributed() before it"
        )


def gpu_index(place: DistributedEnvironment, num_visible: int) -> int:
    """Return the index of this process's GPU among the visible ones. Raises ValueError when there is none."""
    if place.launcher == "slurm" and num_visible == 1:
        return 0  # srun --gpus-per-task=1 shows every task its own GPU alone, as number 0
    if place.local_rank >= num_visible:
        raise ValueError(
            f"LOCAL_RANK={place.local_rank} but only {num_visible} visible GPU(s) on this node; start at most "
            f"{num_visible} processes here (--nproc_per_node={num_visible}), or widen CUDA_VISIBLE_DEVICES"
        )
    return place.local_rank


def _resolve_backend(backend: str) -> str:
    has_gpu = torch.cuda.is_available()
    if "nccl" in backend and not has_gpu:
        raise ValueError(f"--dist_backend {backend} needs a CUDA GPU and none is visible; use --dist_backend gloo")
    # Both: CUDA tensors travel over nccl, counts and decisions on the CPU over gloo without a GPU sync.
    both = "cpu:gloo,cuda:nccl" if has_gpu else "gloo"
    return both if backend in ("auto", "nccl") else backend


def _join(place: DistributedEnvironment, backend: str, init_method: str, timeout: timedelta) -> None:
    where = f"{place.master_addr}:{place.master_port}" if init_method == "env://" else init_method
    meeting: dict[str, Any] = {"init_method": init_method}
    if place.launcher != "none":
        os.environ.update(MASTER_ADDR=place.master_addr, MASTER_PORT=str(place.master_port))
    elif init_method == "env://":
        meeting = {"store": dist.HashStore()}
    try:
        store = JOB_HOOKS.own_store(init_method, place.rank, place.world_size, timeout)
        if store is not None:
            meeting = {"store": store}
        dist.init_process_group(backend, rank=place.rank, world_size=place.world_size, timeout=timeout, **meeting)
    except RuntimeError as error:  # torch's DistNetworkError and DistStoreError are RuntimeErrors in all versions
        if "EADDRINUSE" in str(error) or "ddress already in use" in str(error):
            raise RuntimeError(
                f"port in use: rank 0 cannot listen on {where} (another training on this machine?); set MASTER_PORT "
                "to a free port, or start with `torchrun --standalone`, which picks one"
            ) from error
        raise RuntimeError(
            f"rank {place.rank} of {place.world_size} could not join the group at {where} within "
            f"{timeout.total_seconds():.0f} s: {str(error).splitlines()[0]}; check that MASTER_ADDR and MASTER_PORT "
            "are the same on every node and that all processes were started"
        ) from error


# ----------------------------------------------------------------------------------------------------------------------
# `RETROFIT_WHY=1`: the measurement of `retrofit why` in this training, where the kit is installed.


def measure_if_asked() -> None:
    """Switch on what says where the time of a step goes; it writes to `why/`. Raises ImportError without the kit."""
    if os.environ.get("RETROFIT_WHY", "0") in ("", "0"):
        return
    try:
        importlib.import_module("retrofit.why.live").begin()
    except ImportError as error:
        raise ImportError("RETROFIT_WHY=1 needs torch-retrofit in this Python: install it, or unset it") from error


before_joining.append(measure_if_asked)


# ----------------------------------------------------------------------------------------------------------------------
# Values of all ranks: sums, means, objects, decisions. The identity outside a group.


Value = TypeVar("Value")


@collective
def reduce_tensor_sum(tensor: torch.Tensor) -> torch.Tensor:
    """Return the sum over ranks of `tensor`, a new tensor, exact for int64. Collective: every rank."""
    if not is_distributed():
        return tensor
    total = tensor.detach().clone()
    if total.device.type == "cpu" and dist.get_backend() == "nccl":  # a group that the script has made: no CPU side
        total = total.cuda()
    dist.all_reduce(total, group=group_for(total))
    return total.to(tensor.device)


def reduce_mean(tensor: torch.Tensor) -> torch.Tensor:
    """Return the mean over ranks of `tensor` (same shape on every rank), a new tensor. Collective: every rank."""
    return reduce_tensor_sum(tensor) / get_world_size() if is_distributed() else tensor


def reduce_sum(values: Sequence[float]) -> list[float]:
    """Return the sums over ranks of a few numbers, in float64 on the CPU. Collective: every rank, the same length."""
    return reduce_tensor_sum(torch.tensor([float(value) for value in values], dtype=torch.float64)).tolist()


def reduce_dict(values: Mapping[str, Any], average: bool = True) -> dict[str, Any]:
    """Return `values` averaged (or summed) over ranks: numbers or one-element tensors. Collective: every rank.

    A tensor comes back as a tensor of its own dtype and device. Raises ValueError when the ranks hold different keys,
    or for a tensor with more than one element.
    """
    if not is_distributed():
        return dict(values)
    for name, value in values.items():
        if isinstance(value, torch.Tensor) and value.numel() != 1:
            raise ValueError(
                f"reduce_dict takes numbers and one-element tensors, got {name!r} of shape {tuple(value.shape)}; "
                "use sum_over_ranks for it"
            )
    of_ranks = gather_objects({name: float(values[name]) for name in sorted(values)})
    if any(list(of_rank) != list(of_ranks[0]) for of_rank in of_ranks):
        raise ValueError(
            f"reduce_dict needs the same keys on every rank, got {[*map(list, of_ranks)]}; fill in missing ones"
        )
    result: dict[str, Any] = {}
    for name, value in values.items():
        total = sum(of_rank[name] for of_rank in of_ranks)
        answer: Any = total / get_world_size() if average else total
        if isinstance(value, torch.Tensor):
            dtype = value.dtype if value.is_floating_point() or not average else torch.float32
            answer = torch.tensor(answer, dtype=dtype, device=value.device).reshape(value.shape)
        result[name] = answer
    return result


def on_any_rank(condition: Any) -> bool:
    """Return whether a condition holds on any rank, so that all decide the same. Collective: every rank."""
    return reduce_sum([bool(condition)])[0] > 0


@collective
def broadcast_object(value: Value, source: int = 0) -> Value:
    """Return rank `source`'s `value` on every rank: a decision is made once. Collective: every rank."""
    if not is_distributed():
        return value
    box = [value if get_rank() == source else None]
    dist.broadcast_object_list(box, src=source, group=control_group())
    return box[0]  # type: ignore[return-value]


@collective
def gather_objects(value: Value) -> list[Value]:
    """Return the values of all ranks, in rank order, on every rank. Collective: every rank."""
    if not is_distributed():
        return [value]
    gathered: list[Any] = [None] * get_world_size()
    dist.all_gather_object(gathered, value, group=control_group())
    return gathered


def raise_together(error: BaseException | None) -> None:
    """Raise on every rank when any rank has an error, so that none waits for the others. Collective: every rank.

    The failing rank raises its own error; the others a RuntimeError that names it.
    """
    messages = gather_objects(None if error is None else f"{type(error).__name__}: {error}")
    if error is not None:
        raise error
    for rank, message in enumerate(messages):
        if message is not None:
            raise RuntimeError(f"rank {rank} failed: {message}")


# ----------------------------------------------------------------------------------------------------------------------
# Random streams of python, numpy and torch: seed them, keep the ranks' streams apart, save and restore them.


def seed_everything(seed: int) -> None:
    """Seed python, numpy (if it is loaded) and torch on all devices, the same on every rank.

    Use it before what all ranks must agree on (a random split, the initial weights), then `split_random_streams`.
    """
    random.seed(seed)
    torch.manual_seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed % 2**32)


def split_random_streams(seed: int) -> None:
    """Give every rank but 0 a random stream of its own from here on, for augmentation and dropout.

    DataLoader workers follow: their seeds are drawn from this stream.
    """
    own = mix_seed(seed, get_rank())
    if get_rank() > 0 and torch.initial_seed() != own:  # it has its stream already
        seed_everything(own)


def share_random_state() -> None:
    """Give every rank rank 0's random streams, for a script that sets no seed. Collective: every rank."""
    if is_distributed():
        set_rng_state(broadcast_object(get_rng_state()))


def mix_streams(rank: int) -> None:
    """Seed each stream by what it would draw next and `rank`; those of rank 0 stay as they are."""
    if rank == 0:
        return
    random.seed(mix_seed(random.getrandbits(62), rank))
    torch.manual_seed(mix_seed(int(torch.randint(2**62, ())), rank))
    if "numpy" in sys.modules:
        numpy_random = sys.modules["numpy"].random
        numpy_random.seed(mix_seed(int(numpy_random.randint(2**31)), rank) % 2**32)


def mix_seed(*parts: int) -> int:
    """Return a 62-bit seed that depends on every part: nearby inputs give unrelated streams."""
    return int.from_bytes(hashlib.sha256(repr([int(part) for part in parts]).encode()).digest()[:8], "big") >> 2


def get_rng_state() -> dict[str, Any]:
    """Return the state of this process's random streams, in types that `torch.load(weights_only=True)` reads."""
    state: dict[str, Any] = {"python": random.getstate(), "torch": torch.get_rng_state()}
    if "numpy" in sys.modules:
        name, keys, position, has_gauss, cached_gaussian = sys.modules["numpy"].random.get_state()
        state["numpy"] = (name, keys.tolist(), int(position), int(has_gauss), float(cached_gaussian))
    if torch.cuda.is_available() and get_worker_info() is None:  # a worker would take memory of the GPU for it
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def set_rng_state(state: dict[str, Any]) -> None:
    """Put this process's random streams back to a state of `get_rng_state`."""
    version, numbers, cached_gaussian = state["python"]
    random.setstate((version, tuple(numbers), cached_gaussian))
    torch.set_rng_state(state["torch"])
    if "numpy" in state and "numpy" in sys.modules:
        sys.modules["numpy"].random.set_state(tuple(state["numpy"]))
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Run the block with freshly seeded streams and put this process's own streams back after it."""
    before = get_rng_state()
    seed_everything(seed)
    try:
        yield
    finally:
        set_rng_state(before)


def drawn_apart(values: Iterable[Any], seed: int, number: int = 2**16) -> Iterator[Any]:
    """Yield what `values` draws, `number` at a time, from streams that start at `seed` and nothing else draws from."""
    drawing, state = (tuple(v) if isinstance(v, Iterator) else v for v in chain.from_iterable([values])), None
    while True:  # no part of a value, nor iter(values), draws before or later
        with seeded(seed):
            if state is not None:
                set_rng_state(state)
            part, state = list(islice(drawing, number)), get_rng_state()
        yield from part
        if len(part) < number:
            return


# ----------------------------------------------------------------------------------------------------------------------
# Say where rank 0 shows a figure that is its own: another rank would show another one at the same place.


# Methods and functions of writers and trackers that are given figures.
TRACKING = frozenset({"add_scalar", "add_scalars", "log", "log_metric", "log_metrics", "track", "writerow"})
NUMBER = re.compile(r"(?<![\w.:])[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?(?![\w:])|\bnan\b|\binf\b", re.IGNORECASE)
DATE, CLOCK = r"\d{4}([-/.])\d{1,2}\1\d{1,2}", r"\d{1,3}:\d{2}(?::\d{2}(?:[.,]\d+)?Z?)?"
# A date, a time of day or a duration: 2026-01-31, 12:05, 0:00:03.447589, 2026-01-31T12:05:09,123.
OF_THE_CLOCK = re.compile(rf"(?<![\w.:])(?:{DATE}(?:[T_]{CLOCK})?|{CLOCK})(?!\w|[:.,]\d)")
# Numbers next to such words are about the machine or the run, and each rank has its own.
OF_THE_RUN = re.compile(
    r"\b(time|times|took|ms|msecs?|sec|secs|seconds?|s/it|it/s|img|imgs|images?/s|fps|[tg]?flops|mfu|mem|memory|speed|"
    r"eta|elapsed|remaining|throughput|date|hours?|min|mins|minutes?|gpu|gpus|mb|mib|gb|gib|pid|port|"
    r"process|processes|rank|ranks|world)\b|[a-z]+(/|_per_)s(ec)?\b|\d ?(s|ms|sec)\b",
    re.IGNORECASE,
)
# In such a line only what these words announce is compared.
OF_THE_MODEL = re.compile(
    r"(loss|acc\w*|error|err|score|iou|dice|f1|auc|map|ap|precision|recall|psnr|ssim|bleu|rouge|ppl|perplexity|"
    r"top.?[15]|mae|mse|rmse)\W*$",
    re.IGNORECASE,
)
RELATIVE = 1e-5  # what the kernels of a GPU may leave between two ranks
LONGEST, MOST_SAID = 120, 5  # characters of a text, places in a message

Shown = dict[tuple[str, int], str]  # texts by FILE:LINE and how often that was reached

_times: dict[str, int] = {}
_shown: Shown = {}
_said: set[str] = set()


def note_shown(*values: Any, place: str = "") -> None:
    """Note what this rank shows, or would show if it were rank 0; `place` is FILE:LINE, of the caller by default."""
    if get_world_size() == 1:
        return
    if not place:
        _, frame = called_from(sys._getframe(1))
        place = f"{frame.f_code.co_filename}:{frame.f_lineno}"
    _times[place] = times = _times.get(place, 0) + 1
    if times & (times - 1) == 0:
        with suppress(Exception):  # of the values' own __str__, which rank 0 raises where it prints them
            _shown[place, times] = " ".join(map(str, values))


def note_tracked(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Note what a call with this name gives to a writer or a tracker."""
    if name in TRACKING:
        note_shown(*args, *kwargs.values())


def watch_tracking(tool: Any) -> Any:
    """Return a writer, a run or a module of a tracker that notes what it is given from now on."""
    for name in TRACKING if get_world_size() > 1 and not isinstance(tool, torch.Tensor) else ():
        with suppress(Exception):  # it has no such method, or takes no attribute
            setattr(tool, name, _noting(name, getattr(tool, name)))
    return tool


def _noting(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def noted(*args: Any, **kwargs: Any) -> Any:
        note_tracked(name, args, kwargs)
        return method(*args, **kwargs)

    return noted


def take_shown() -> Shown:
    """Return what this rank has noted since the last time."""
    taken = dict(_shown)
    _shown.clear()
    return taken


def say_where_ranks_differ(of_ranks: list[Shown]) -> None:
    """Say once of each place at which a rank has another figure than rank 0; rank 0 says it."""
    found = dict(_differing(of_ranks)) if get_rank() == 0 else {}
    new = [text for place, text in found.items() if place not in _said]
    _said.update(found)
    if new:
        rest = f"; and {len(new) - MOST_SAID} more" if len(new) > MOST_SAID else ""
        print(
            f"notice: what rank 0 shows is its own share, and other ranks have other figures: "
            f"{'; '.join(new[:MOST_SAID])}{rest}. rd.reduce_dict({{'loss': loss}}) gives the mean over the ranks; "
            "RETROFIT_CONSISTENCY=off switches this comparison off",
            file=sys.stderr,
            flush=True,
        )


def _differing(of_ranks: list[Shown]) -> Iterator[tuple[str, str]]:
    for (place, times), text in of_ranks[0].items():
        for rank, shown in enumerate(of_ranks[1:], 1):
            if differ(text, shown.get((place, times), text)):
                other = shown[place, times]
                yield place, f"{os.path.basename(place)} {text[:LONGEST]!r} (rank {rank}: {other[:LONGEST]!r})"
                break


def differ(text: str, other: str) -> bool:
    """Return whether two texts say the same of other figures; what tells of the machine does not count."""
    text, other = OF_THE_CLOCK.sub("TIME", text), OF_THE_CLOCK.sub("TIME", other)
    if text == other or NUMBER.sub("#", text) != NUMBER.sub("#", other):
        return False
    of_run, last = OF_THE_RUN.search(text), 0
    for match, number in zip(NUMBER.finditer(text), NUMBER.findall(other)):
        words, last = text[last : match.start()], match.end()
        a, b = float(match.group()), float(number)
        is_same = a == b or (math.isnan(a) and math.isnan(b)) or abs(a - b) <= RELATIVE * max(abs(a), abs(b))
        if not is_same and (not of_run or OF_THE_MODEL.search(words)):
            return True
    return False


def _compare_last() -> None:
    if get_world_size() > 1 and read_twin(CONSISTENCY) != "off":
        say_where_ranks_differ(gather_objects(take_shown()))


before_leaving.append(_compare_last)


# ----------------------------------------------------------------------------------------------------------------------
# Output of one rank for all: prints, files, writers, trackers, answers, preparations.


HANDLE = logging.Logger.handle


def print_main(*values: Any, **options: Any) -> None:
    """Print on rank 0; the other ranks stay silent. Takes what `print` takes."""
    note_shown(*values)
    if is_main_process():
        print(*values, **options)


def on_main_process(factory: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Return `factory(*args, **kwargs)`, of which one must exist, on rank 0 and a `SilentObject` on the others."""
    note_tracked(getattr(factory, "__name__", ""), args, kwargs)
    return watch_tracking(factory(*args, **kwargs)) if is_main_process() else SilentObject()


def path_on_main(path: Any) -> Any:
    """Return `path` on rank 0 and the null device on the others: `open(path_on_main("log.csv"), "a")`.

    A pathlib.Path stays one: `path_on_main(folder / "log.csv").open("a")`.
    """
    nowhere = Path(os.devnull) if isinstance(path, Path) else os.devnull
    return path if is_main_process() else nowhere


def quiet_logging() -> None:
    """Leave ranks other than 0 their warnings and errors only, of all that goes through the logging module.

    What goes through loguru's logger, where the script has imported that, is rank 0's alone.
    """
    if get_world_size() > 1 and logging.Logger.handle is HANDLE:
        logging.Logger.handle = _handle_of_main  # type: ignore[method-assign, assignment]
    if not is_main_process() and "loguru" in sys.modules:
        sys.modules["loguru"].logger.disable("")  # of all modules; a file that it adds stays empty


def _handle_of_main(logger: logging.Logger, record: logging.LogRecord) -> None:
    note_shown(record.getMessage(), place=f"{record.pathname}:{record.lineno}")
    if is_main_process() or record.levelno > logging.INFO:
        HANDLE(logger, record)


def share_hydra_run() -> None:
    """Let Hydra name the folder of a run by rank 0's time, and rank 0 alone write to it. Collective: every rank."""
    now = datetime.fromtimestamp(broadcast_object(time.time()))
    if not is_distributed():
        return
    settings = import_module("omegaconf").OmegaConf
    register = settings.register_new_resolver

    def register_shared(name: str, resolver: Callable[..., Any], **options: Any) -> None:
        register(name, now.strftime if name == "now" else resolver, **options)  # ${now:%Y-%m-%d}

    settings.register_new_resolver = register_shared
    if not is_main_process():  # .hydra/config.yaml; the log file
        nothing = dict.fromkeys(["_save_config", "configure_log"], lambda *given: None)
        vars(import_module("hydra.core.utils")).update(nothing)


class SilentObject:
    """Takes every method call, also of its attributes, and does nothing; falsy: `if writer:` guards preparation.

    As a path, `os.path.join(writer.log_dir, "best.pt")`, it is below the null device, where no file can be.
    """

    __iter__ = None  # it has no elements, which indexing alone would not say

    def __init__(self, name: str = "") -> None:
        self._name = name  # as which attribute of another one it was asked for

    def __getattr__(self, name: str) -> SilentObject:
        if name.startswith("__"):
            raise AttributeError(name)
        return SilentObject(name)

    def __call__(self, *args: Any, **kwargs: Any) -> SilentObject:
        note_tracked(self._name, args, kwargs)
        return SilentObject()

    __getitem__ = __setitem__ = __exit__ = __call__  # an exception passes: the result is falsy

    def __fspath__(self) -> str:
        return os.devnull

    def __bool__(self) -> bool:
        return False

    def __enter__(self) -> SilentObject:
        return self


def answer_of_main(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Return what `function(*args, **kwargs)` gives on rank 0, on every rank; the others do not call it.

    For what they would answer in different ways: whether a folder is there that rank 0 is about to make. Collective:
    every rank. Raises on rank 0 what the function raises, RuntimeError on the others. Inside `main_process_first()`
    they get the answer in their turn, and call the function where rank 0 did not ask the same.
    """
    turn = turns[-1] if turns else None  # rank 0's answers, by question
    name = getattr(function, "__qualname__", repr(function))
    question = "" if turn is None else f"{getattr(function, '__module__', '')}.{name}{args!r}{sorted(kwargs.items())!r}"
    answers = [] if turn is None else turn.setdefault(question, [])
    if turn is not None and not answers and not is_main_process():
        return function(*args, **kwargs)
    value, error = _call_on_main(function, args, kwargs)
    failure = "" if error is None else f"{name.rpartition('.')[2]} failed on rank 0: {type(error).__name__}: {error}"
    if turn is None:
        value, failure = broadcast_object((value, failure))
    elif is_main_process():
        answers.append((value, failure))
    else:
        value, failure = answers.pop(0)
    if failure:
        raise RuntimeError(failure) if error is None else error
    return value


def _call_on_main(function: Callable[..., Any], args: Any, kwargs: Any) -> tuple[Any, Exception | None]:
    """Return what the call gives on rank 0, and its error; the others do not call, unless there is no group."""
    try:
        return function(*args, **kwargs) if is_main_process() or not is_distributed() else None, None
    except Exception as error:
        return None, error


@contextmanager
def main_process_first(share_draws: bool = False) -> Iterator[None]:
    """Run the block on rank 0 first, then on one process of each other node, then on the rest (a download, a cache).

    That serves a disk which all nodes share and disks of their own. Collective: every rank. An error in the block
    lets the next ranks continue. Collectives in the block raise RuntimeError. With `share_draws` all ranks continue
    with rank 0's random numbers: for a block that draws some only where a file is missing.
    """
    if turns or get_world_size() == 1:  # in such a block already, or alone
        yield
        return
    number = 0 if is_main_process() else 1 if get_local_rank() == 0 else 2
    answers: Any = broadcast_object({}) if number else {}  # the others wait here for rank 0's turn to end
    if number == 2:
        barrier()
    turns.append(answers)
    try:
        yield
    finally:
        turns.clear()
        if number == 0:
            broadcast_object(answers)
        if number < 2:
            barrier()
    if share_draws:
        share_random_state()


# What a script reads from a run to name files and folders, and cannot be told when the run is started.
RUN_FACTS = ("name", "id", "dir", "path", "project", "entity", "group", "url", "sweep_id")


def start_tracker(start: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Return `start(*args, **kwargs)` on rank 0 and a run that records nothing on the others.

    `run = start_tracker(wandb.init, project="a")`. The others have a disabled run of wandb and swanlab with rank 0's
    configuration, name, id and folder, a disabled one of neptune, comet_ml and clearml, and a `SilentObject` of every
    other tool. Collective: every rank. Raises what `start` raises on rank 0, on the others a RuntimeError that says so.
    """
    require_group("start_tracker")
    if not is_distributed():
        return start(*args, **kwargs)
    run, error = _call_on_main(start, args, kwargs)
    raise_together(error)
    facts = broadcast_object(_facts_of(run))
    run = run if is_main_process() else _start_disabled(start, args, kwargs, facts)
    watch_tracking(sys.modules.get(str(getattr(start, "__module__", "")).partition(".")[0]))  # wandb.log(...)
    return watch_tracking(run)


def _facts_of(run: Any) -> dict[str, Any]:
    """Return what the other ranks are to know of a run: the texts and numbers of RUN_FACTS, and its configuration."""
    facts: dict[str, Any] = {}
    for name in RUN_FACTS:
        with suppress(Exception):  # some can only be read from a run that is online
            facts[name] = getattr(run, name)
    facts = {name: value for name, value in facts.items() if value is None or isinstance(value, (str, int))}
    with suppress(Exception):
        facts["config"] = dict(run.config)
    return facts


def _start_disabled(start: Callable[..., Any], args: Any, kwargs: dict[str, Any], facts: dict[str, Any]) -> Any:
    tool: str = str(getattr(start, "__module__", "")).partition(".")[0]
    owner: Any = getattr(start, "__self__", None)
    if tool in ("wandb", "swanlab"):
        left_out = ("resume", "config_include_keys", "config_exclude_keys")
        given = {name: value for name, value in kwargs.items() if name not in left_out}
        given.update({name: facts[name] for name in ("config", "name", "id") if facts.get(name) not in (None, "")})
        facts.pop("config", None)
        return _with_facts(start(*args, **{**given, "mode": "disabled"}), facts)
    if tool == "neptune":
        return start(*args, **{**kwargs, "mode": "debug"})
    if tool == "comet_ml" and isinstance(start, type):
        return start(*args, **{**kwargs, "disabled": True})
    if tool in ("clearml", "trains") and hasattr(owner, "set_offline"):
        owner.set_offline(True)
        return start(*args, **kwargs)
    return SilentObject()


def _with_facts(run: Any, facts: dict[str, Any]) -> Any:
    """Return a disabled run that says of itself what rank 0's says: its class makes up a name and a folder."""
    members = {name: value for name, value in facts.items() if getattr(run, name, None) != value}
    if members:
        run.__class__ = type(type(run).__name__, (type(run),), members)
    return run


# ----------------------------------------------------------------------------------------------------------------------
# The GPU of this process in place of the one that a script names, for devices and counts of GPUs.


def own_device(device: Any) -> Any:
    """Return `device` with the number of this process's own GPU in the place of the one that it names.

    `device` is anything that names one: "cuda:0", 0, torch.device("cuda:0"), a map_location. Without a launcher, on a
    machine without GPUs, and where none is named by number ("cuda", "cpu", None, -1), it comes back as it is. It may be
    called before `setup_distributed`. Raises ValueError where other processes have GPUs and this one has none.
    """
    place = read_environment(os.environ)
    if place.world_size == 1 or not torch.cuda.device_count():  # the script may take the CPU there
        return device
    if isinstance(device, dict):
        return {saved_on: own_device(target) for saved_on, target in device.items()}
    is_index = _is_number(device) and device >= 0
    if not is_index and not (isinstance(device, (str, torch.device)) and re.fullmatch(r"cuda:\d+", str(device))):
        return device
    own = gpu_index(place, torch.cuda.device_count())
    if place.local_rank == 0 and str(device).rpartition(":")[2] != str(own):
        _notice(f"a GPU ({device}) is for one process; each process uses its own GPU")
    return own if is_index else type(device)(f"cuda:{own}")


def choose_gpu() -> None:
    """Make this process's own GPU the current one, before a script uses CUDA ahead of `setup_distributed`.

    Without a launcher, and without a GPU, nothing happens. Raises ValueError for a local rank without a GPU.
    """
    place = read_environment(os.environ)
    if place.world_size > 1 and torch.cuda.is_available():
        torch.cuda.set_device(gpu_index(place, torch.cuda.device_count()))


def own_storage(storage: Any, location: str) -> Any:
    """Move what was saved on a GPU to this process's device, and leave the rest: `torch.load(path, map_location=...)`.

    So a state of random numbers and a data set, which were saved in main memory, stay there.
    """
    if location == "cpu":
        return storage
    device = get_device()
    return storage.cuda(device.index) if device.type == "cuda" else storage


def own_gpu_count(count: Any) -> Any:
    """Return how many of `count` GPUs this process drives: all of them without a launcher, else one of them.

    For a script that multiplies its batch, its learning rate or its workers by the number of GPUs: started by a
    launcher, every process counts for one GPU. What is not a whole number comes back as it is.
    """
    return min(count, 1) if _is_number(count) and read_environment(os.environ).world_size > 1 else count


def visible_gpus(chosen: str) -> str:
    """Return what a script sets CUDA_VISIBLE_DEVICES to: its own choice, where that is enough for all processes here.

    Started by a launcher with more processes on this machine than `chosen` names GPUs, the choice is the launcher's.
    """
    place = read_environment(os.environ)
    named = [name for name in str(chosen).split(",") if name.strip() not in ("", "-1")]
    if place.launcher == "none" or not named or len(named) >= place.local_world_size:
        return chosen
    if place.local_rank == 0:
        _notice(
            f"GPUs ({chosen}) is not enough for {place.local_world_size} processes; CUDA_VISIBLE_DEVICES, set where "
            "the training is started, decides"
        )
    return os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(place.local_world_size)))


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


@cache
def _notice(text: str) -> None:
    """Say once that a script's choice of GPUs does not count."""
    print(f"notice: the script's choice of {text}")


# ----------------------------------------------------------------------------------------------------------------------
# The training batch that this rank is using, and how much its samples count: means and sums over the whole batch.


class Batch(NamedTuple):
    """This rank's part of a batch: the samples that it has, those of a full one, and how much its mean counts.

    `of_ranks`: the samples of every rank in it, without repeated ones; `is_in_turn`: a rank has each `world_size`-th
    sample of the batch, from its rank on, and not all of its own one after the other.
    """

    length: int
    full: int
    weight: float
    of_ranks: tuple[int, ...] = ()
    is_in_turn: bool = True

    @property
    def places(self) -> range:
        """The places of this rank's samples in the whole batch, as one process has it."""
        rank, total = get_rank(), sum(self.of_ranks)
        first = sum(self.of_ranks[:rank])
        return range(rank, total, get_world_size()) if self.is_in_turn else range(first, first + self.of_ranks[rank])


batches_in_use: dict[object, Batch] = {}  # of each iteration over a training loader that has not ended
_last: Batch | None = None  # of the iteration that ended last
_unused: dict[DrawnAhead, int] = {}  # how many batches a loader has given since one was used
_ahead: list[DrawnAhead] = []  # the loaders of which batches are drawn ahead
OF_THEM = "drawn ahead"  # the key of that batch of theirs which is in use
AT_THE_END = (  # what next() says, where a script draws more batches than there are
    "this rank has drawn all its batches of a loader; RETROFIT_BATCH=global gives as many as one process has"
)


class DrawnAhead:
    """The batches of a loader of which a script draws some before it has used the ones before.

    A prefetcher, a list of all batches. The one in use has as many samples as the model is called with on each rank.
    """

    def __init__(self, is_even: bool = False) -> None:
        self.is_even = is_even  # whether all batches count the same
        self.is_ahead = self.is_found = self.is_iterated = self.is_in_thread = False
        self.drawn: dict[tuple[int, ...], Batch] = {}  # by `of_ranks`

    def begin(self) -> None:
        """Note that an iteration over the loader begins."""
        if not self.is_found:  # what was drawn before has trained nothing
            self.is_ahead = False
            self.drawn.clear()
            _ahead[:] = [other for other in _ahead if other is not self]
        self.is_iterated = True
        _unused.pop(self, None)

    def add(self, batch: Batch) -> None:
        """Note that a batch is drawn."""
        _unused[self] = _unused.get(self, 0) + 1
        self.drawn[batch.of_ranks] = batch
        self.is_in_thread = threading.current_thread() is not threading.main_thread()
        if _unused[self] > 1 or self.is_in_thread:
            self._look()
        if self.is_ahead and not self.is_found:
            batches_in_use[OF_THEM] = batch

    def end(self) -> None:
        """Note that the last batch of an iteration is drawn, which may still be used."""
        self.is_iterated = False
        if self in _unused:
            self._look()
        if not self.is_found:
            batches_in_use.pop(OF_THEM, None)

    def _look(self) -> None:
        if not self.is_ahead:
            self.is_ahead = True
            _ahead.append(self)

    @property
    def may_have_ended(self) -> bool:
        return self.is_in_thread or not self.is_iterated  # of a thread, ranks would say it at other times


def weight_for_model(*inputs: Any) -> float:
    """Return `weight_of` the inputs of a model, also where batches are drawn ahead. Collective: every rank.

    Of these it is the batch of which every rank has as many samples as the inputs have rows, or the same multiple.
    Raises RuntimeError where batches that count differently fit.
    """
    others = {batch.of_ranks: batch for key, batch in batches_in_use.items() if key != OF_THEM}
    loaders = [ahead for ahead in _ahead if ahead.is_iterated or ahead.is_in_thread or not others]
    if not loaders:
        batches_in_use.pop(OF_THEM, None)
        return weight_of(inputs)
    drawn = others | {key: batch for ahead in loaders for key, batch in list(ahead.drawn.items())}
    sizes = [list(first_sizes(inputs, slice(dimension, dimension + 1))) for dimension in (0, 1)]
    fits = {key: [_multiples(of_dimension, batch) for of_dimension in sizes] for key, batch in drawn.items()}
    of_ranks = [fits] if all(ahead.is_even for ahead in loaders) else gather_objects(fits)
    best = _fitting(of_ranks, 0) or _fitting(of_ranks, 1)
    if len({tuple(number / sum(key) for number in key) for key in best}) > 1:
        raise RuntimeError(
            "the script draws batches before it has used the ones before, and the model is called with what may be "
            f"each of several, of {' or '.join(map(str, best))} samples on the ranks; give the loader drop_last=True"
        )
    for ahead in loaders:
        ahead.is_found = ahead.is_found or bool(ahead.drawn.keys() & best)
    if not best:
        return weight_of(inputs)
    _unused.clear()
    batches_in_use[OF_THEM] = drawn[best[0]]
    return drawn[best[0]].weight


def _multiples(sizes: list[int], batch: Batch) -> set[int]:
    return {size // batch.length for size in sizes if size and size % batch.length == 0}


def _fitting(of_ranks: list[dict[tuple[int, ...], Any]], dimension: int) -> list[tuple[int, ...]]:
    """Return the batches of which sizes on all ranks are the same multiple, the smallest that there is."""
    common = {
        key: set.intersection(*(fits[key][dimension] for fits in of_ranks))
        for key in of_ranks[0]
        if all(key in fits for fits in of_ranks)
    }
    smallest = min((min(multiples) for multiples in common.values() if multiples), default=None)
    return [key for key, multiples in common.items() if smallest in multiples]


def end_batches_in_use() -> None:
    """Note that a model is evaluated: what was drawn ahead, by iterations that have ended, is not in use meanwhile."""
    if all(ahead.may_have_ended for ahead in _ahead):
        batches_in_use.pop(OF_THEM, None)


def training_batches(loader: Any, ahead: DrawnAhead) -> Iterator[Any]:
    """Yield the batches of a sharded loader's epoch, each of them in use until the next one; return `AT_THE_END`."""
    sampler = loader.sampler
    sampler.split_streams()
    ahead.begin()
    for number, batch in enumerate(loader):
        begin_step(f"batch {number + 1} of epoch {sampler.epoch + 1}")
        with using(sampler.batch(number), ahead):
            yield batch
    ahead.end()
    return AT_THE_END  # type: ignore[return-value]


@contextmanager
def using(batch: Batch, ahead: DrawnAhead) -> Iterator[None]:
    """Run the block with this rank's part of a batch in use, where the script draws none ahead."""
    global _last
    iteration = object()
    ahead.add(batch)
    if not ahead.is_ahead:
        batches_in_use[iteration] = batch
    try:
        yield
    except GeneratorExit:
        _unused.pop(ahead, None)
        raise
    finally:
        _last = batches_in_use.pop(iteration, _last)


def weight_of(*inputs: Any) -> float:
    """Return the weight of the batch in use to which `inputs` belong: its length divides one of their first two sizes.

    1 without a batch. Raises RuntimeError where batches that count differently fit; warns where none does.
    """
    _unused.clear()
    batches = sorted(set(batches_in_use.values()))
    if all(batch.weight == 1.0 for batch in batches):
        return 1.0
    sizes = list(first_sizes(inputs))
    fits = [not sizes or any(size and size % batch.length == 0 for size in sizes) for batch in batches]
    weights = {batch.weight for batch, is_fit in zip(batches, fits) if is_fit}
    lengths = " and ".join(f"{batch.length} of {batch.full}" for batch in batches)
    if len(weights) > 1:
        raise RuntimeError(
            f"two training loaders are in use at once, and their batches count differently ({lengths} samples on "
            "this rank): which of them a loss belongs to cannot be told; give both loaders drop_last=True"
        )
    if weights:
        return weights.pop()
    warnings.warn(
        f"the model was called with sizes {sizes} in an uneven last batch ({lengths} samples on this rank); its "
        "gradients count the same on every rank; drop_last=True makes every batch even",
        stacklevel=2,
    )
    return 1.0


def first_sizes(value: Any, dimensions: slice = slice(2)) -> Iterator[int]:
    """Yield the first two sizes of every tensor, or others; one of them is the number of samples."""
    if isinstance(value, torch.Tensor):
        yield from value.shape[dimensions]
    elif isinstance(value, PackedSequence):  # the number of its words says nothing
        yield int(value.batch_sizes[0])
    elif isinstance(value, (list, tuple, MutableMapping)):
        for entry in value.values() if isinstance(value, MutableMapping) else value:
            yield from first_sizes(entry, dimensions)


def without_repeated(value: Any) -> Any:
    """Return a sum or a count of this rank's share, 0 where it is of a sample repeated to give every rank one."""
    return value * 0 if weight_of() == 0 else value


def total_of_ranks(value: Any) -> Any:
    """Return the sum over ranks of a tensor, a number or an array, which must be of one kind on every rank."""
    if isinstance(value, torch.Tensor):
        return reduce_tensor_sum(value.int() if value.dtype == torch.bool else value)
    if type(value) not in (int, float):
        return sum(gather_objects(value))
    total = reduce_sum([value])[0]
    return int(total) if type(value) is int and total.is_integer() else total


class _ValuePickler(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor) and (value.requires_grad or value.device.type != "cpu"):
            return torch.Tensor.to, (value.detach().cpu(), value.device.type)
        return NotImplemented


def gather_values(value: Any) -> list[Any]:
    """Return the values of all ranks. Tensors in them come without gradients, those on a GPU to that of this rank."""
    _ValuePickler(file := io.BytesIO()).dump(value)
    return [pickle.loads(of_rank) for of_rank in gather_objects(file.getvalue())]


def in_turn(lists: Any) -> list[Any]:
    """Return the entries of all ranks' lists in the order of one process: the first ones, then the second ones."""
    return [entries[row] for row in range(max(map(len, lists))) for entries in lists if row < len(entries)]


def reduce_loss(loss: Any) -> Any:
    """Return the mean over the batch of all ranks of a loss, or of another mean, over one rank's share.

    `loss`: a tensor, which comes back without gradient, a number or an array. Collective: every rank.
    """
    return _weighted_mean(loss, weight_of())


def reduce_last_loss(loss: Any) -> Any:
    """Return `reduce_loss` of the last batch, after the loop over the loader. Collective: every rank."""
    return _weighted_mean(loss, weight_of() if batches_in_use or _last is None else _last.weight)


def _weighted_mean(loss: Any, weight: float) -> Any:
    world_size = get_world_size()
    return loss if world_size == 1 else total_of_ranks(loss * weight) / world_size


def reduce_summed_loss(loss: torch.Tensor) -> torch.Tensor:
    """Return the sum over ranks of a loss summed over one rank's share, also after the loop. Collective: every rank."""
    return reduce_tensor_sum(without_repeated(loss) if batches_in_use or _last is None else loss * (_last.weight > 0))


def reduce_total(value: Any) -> Any:
    """Return the sum over ranks of what was counted or added up over this rank's share of a training batch.

    `value`: a number, a tensor or an array; returned as it is where no share of a batch is in use, as in an evaluation
    that every rank runs whole. Collective: every rank.
    """
    return total_of_ranks(without_repeated(value)) if get_world_size() > 1 and batches_in_use else value


def gather_batch(values: Any) -> Any:
    """Return the entries of all ranks' shares of a training batch, in the order in which one process has them.

    `values`: a list, a tensor or an array with an entry per sample; returned as it is where no share of a batch is in
    use. Collective: every rank.
    """
    if get_world_size() == 1 or not batches_in_use:
        return values
    shares = gather_values(values[:0] if weight_of() == 0 else values)
    if isinstance(values, list):
        return in_turn(shares)
    rows = in_turn([[share[row : row + 1] for row in range(len(share))] for share in shares])
    join = torch.cat if isinstance(values, torch.Tensor) else sys.modules["numpy"].concatenate
    return join(rows or [values[:0]])


def squeeze_rows(rows: Any) -> Any:
    """Return `rows.squeeze()`, of a tensor or an array; of one row in one of several processes, still with that row.

    There other processes have more rows of the same batch, and all continue with the same shapes.
    """
    if get_world_size() == 1 or not len(rows.shape) or rows.shape[0] != 1:
        return rows.squeeze()
    return rows.reshape(1, *(size for size in rows.shape[1:] if size != 1))


def rows_of(part: Any, rows: slice) -> Any:
    """Return rows of a tensor, an array or a list, next to each other in memory where those of `part` are."""
    if isinstance(part, torch.Tensor) and part.layout == torch.sparse_coo:
        return part.index_select(0, torch.arange(len(part), device=part.device)[rows])
    own = part[rows]
    if isinstance(part, torch.Tensor):
        return own.contiguous() if part.is_contiguous() else own
    is_array = getattr(getattr(part, "flags", None), "c_contiguous", False)
    return own.copy() if is_array else own


# ----------------------------------------------------------------------------------------------------------------------
# Shard the samples of a DataLoader over the ranks, and start its workers safely.


MOST_INDICES = 50_000_000  # of an order that is held in memory as a whole
NOT_IN_WORKERS = ("debugpy", "pydev", "_pydev", "pytest", "_pytest")  # they would hook into the fork server


class ShardedSampler(Sampler):
    """This rank's part of another sampler's order: every sample once per epoch over all ranks, a new order per epoch.

    Every rank draws the whole order from the same stream, seeded by `(seed, epoch)`, and takes each `world_size`-th
    index. All have the same number of batches: without `drop_last` the last one is split, and where it has fewer
    samples than ranks, the first ones are repeated. Collective at the start of an epoch, where the sampler is not one
    of torch's: raises RuntimeError where the ranks draw different orders.
    """

    kept = False  # whole batches, where they would be split

    def __init__(self, sampler: Any, batch_size: int, *, drop_last: bool = False, seed: int = 0) -> None:
        self.sampler = without_generator(sampler)
        if hasattr(self.sampler, "sampler"):
            self.sampler.sampler = without_generator(self.sampler.sampler)
        self.batch_size, self.drop_last, self.seed = batch_size, drop_last, seed
        self.rank, self.world_size = get_rank(), get_world_size()
        self.epoch, self._next_epoch, self._start = -1, 0, 0
        self._total: int | None = None  # of the epoch, where its order has been drawn

    def set_epoch(self, epoch: int, start: int = 0) -> None:
        """Choose the order of the next iteration, from its `start`-th sample (over all ranks) on; else the next one."""
        self._next_epoch, self._start = epoch, start

    def split_streams(self) -> None:
        """Let this rank draw random numbers of its own from now on, unless a first epoch has begun."""
        if self.epoch < 0:
            split_random_streams(self.seed)
            self.epoch = 0

    def __iter__(self) -> Iterator[Any]:
        self.epoch, start = self._next_epoch, self._start
        self._next_epoch, self._start = self.epoch + 1, 0
        if hasattr(self.sampler, "set_epoch"):
            self.sampler.set_epoch(self.epoch)
        seed = mix_seed(self.seed, self.epoch)
        length = len(self.sampler) if hasattr(self.sampler, "__len__") else 0
        most = length if length <= MOST_INDICES else 0
        number = 2**16 if length else self.batch_size * self.world_size
        drawn = islice(drawn_apart(self.sampler, seed, number), start, None)
        order = list(islice(drawn, most + 1))
        if len(order) > most:  # it may never end, whatever its length: RandomSampler(num_samples=10**10)
            return self._in_parts(chain(order, drawn))
        self._check(order)
        self._begin(order, start)
        return islice(cycle(order), self.rank, self._num_used(len(order)), self.world_size)

    def _in_parts(self, drawn: Iterator[Any]) -> Iterator[Any]:
        """Yield this rank's part of an order that may have no end, a batch of all ranks at a time."""
        start, whole = 0, self.batch_size * self.world_size
        while True:
            part = list(islice(drawn, whole))
            if start == 0:
                self._check(part)
            self._begin(part, start)
            yield from islice(cycle(part), self.rank, self._num_used(len(part)), self.world_size)
            if len(part) < whole:
                return
            start += whole

    def _begin(self, drawn: list[Any], start: int) -> None:
        """Note what was drawn of an epoch, from its `start`-th sample on."""
        self._total = start + len(drawn)

    def _check(self, order: list[Any]) -> None:
        kinds = {type(self.sampler), type(getattr(self.sampler, "sampler", self.sampler))}
        if all(kind.__module__.startswith("torch.utils.data") for kind in kinds):
            return
        require_main_thread(self.sampler)
        digests = gather_objects(hashlib.sha256(repr(order).encode()).hexdigest())
        if len(set(digests)) > 1:
            raise RuntimeError(
                f"the ranks draw different orders from {type(self.sampler).__name__}, so samples would be trained on "
                "twice and others not at all; it must draw its random numbers from torch, numpy or random, or from a "
                "generator that is seeded the same on every rank"
            )

    def __len__(self) -> int:
        """The number of this rank's samples in a whole epoch."""
        return len(range(self.rank, self._num_used(len(self.sampler)), self.world_size))

    @property
    def is_even(self) -> bool:
        """Whether every rank has as many samples in each batch, the last one included."""
        return self.drop_last or (hasattr(self.sampler, "__len__") and len(self.sampler) % self.world_size == 0)

    def batch(self, number: int) -> Batch:
        """Return this rank's part of an epoch's batch `number`: length with repeated samples, weight without."""
        whole = self.batch_size * self.world_size
        drawn = len(self.sampler) if self._total is None else self._total
        total = max(1, min(whole, drawn - number * whole))
        of_ranks = tuple(len(range(rank, total, self.world_size)) for rank in range(self.world_size))
        own = of_ranks[self.rank]
        return Batch(max(own, 1), self.batch_size, own * self.world_size / total, of_ranks)

    def _num_used(self, total: int) -> int:
        """Return how many of `total` samples, repeated ones included, give all ranks the same number of batches."""
        tail = total % (self.batch_size * self.world_size)
        if self.drop_last:
            return total - tail
        return total + self.world_size - tail if 0 < tail < self.world_size else total


class ShardedBatches(ShardedSampler):
    """This rank's part of the batches of a batch sampler: whole ones, the first of each `world_size` to rank 0.

    With `splits` its part of each batch, so that all ranks together have the batch of one process; all of it where they
    are `kept`. A batch counts by its number of samples; where not every rank has one, or has a sample of one, some are
    repeated and count nothing.
    """

    def __init__(self, batches: Any, seed: int, splits: bool) -> None:
        super().__init__(batches, 1, seed=seed)
        self.part: tuple[int, int] | None = None
        if splits:
            self.part = self.rank, self.world_size
            self.rank, self.world_size = 0, 1  # of whole batches every rank draws all
        self._sizes: dict[int, tuple[list[int], int]] = {}  # of all ranks' batches, and of this rank's, by number
        self._full = 0

    def __iter__(self) -> Iterator[Any]:
        drawn = super().__iter__()
        if self.part is None or self.kept:
            return drawn
        rank, world_size = self.part
        return (list(batch[rank::world_size]) or list(batch[:1]) for batch in map(list, drawn))

    def _begin(self, drawn: list[Any], start: int) -> None:
        super()._begin(drawn, start)
        sizes = [len(batch) for batch in drawn]
        self._full = max([self._full if start else 0, *sizes])
        if start == 0:
            self._sizes = {}
        for first in range(0, len(sizes), self.world_size):
            own = sizes[(first + self.rank) % len(sizes)]
            self._sizes[(start + first) // self.world_size] = sizes[first : first + self.world_size], own

    @property
    def is_even(self) -> bool:
        return False

    def batch(self, number: int) -> Batch:
        """Return this rank's batch `number` of an epoch: its length, and its weight by the samples of all ranks."""
        self._sizes.pop(number - 1, None)
        sizes, length = self._sizes[number]
        total, full = sum(sizes), self._full
        if self.part is None:
            rank, world_size = self.rank, self.world_size
            of_ranks = (*sizes, *[0] * (world_size - len(sizes)))
        elif self.kept:
            return whole_batch(total)
        else:
            rank, world_size = self.part
            of_ranks = tuple(len(range(other, total, world_size)) for other in range(world_size))
            length, full = max(of_ranks[rank], 1), -(-full // world_size)
        return Batch(length, full, of_ranks[rank] * world_size / total, of_ranks, is_in_turn=self.part is not None)


def whole_batch(length: int) -> Batch:
    """Return a batch that every rank has all of: rank 0's counts. Warns of the time that this takes."""
    if get_rank() == 0:
        text = "--batch global, and batches that are not split: every rank computes them whole, and rank 0's count, so "
        text += "more ranks save no time; leave --batch at per_gpu: each rank then takes whole batches in turn"
        warnings.warn(text, stacklevel=2)
    weight, of_ranks = 0 if get_rank() else get_world_size(), (length, *[0] * (get_world_size() - 1))
    return Batch(1, 1, float(weight), of_ranks, is_in_turn=False)


class DistributedLoader:
    """A loader with the attributes and class of `loader`, and the script's batch size; yields `iterate(loader)`."""

    def __init__(self, loader: DataLoader, iterate: Callable[[DataLoader], Iterator[Any]]) -> None:
        self.__dict__.update(_loader=loader, _iterate=iterate, _whole=getattr(loader, "_of_all_ranks", loader))

    def __iter__(self) -> Iterator[Any]:
        return self._iterate(self._loader)

    def __len__(self) -> int:
        length, whole = len(self._loader), self._whole
        is_of_all = not isinstance(whole.dataset, IterableDataset) and length == DataLoader.__len__(whole)
        return DataLoader.__len__(self._loader) if is_of_all else length  # a class may count its batches in __init__

    def __getattr__(self, name: str) -> Any:
        if name == "_loader":  # while it is copied
            raise AttributeError(name)
        return getattr(self._whole if name == "batch_size" else self._loader, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._loader, name, value)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:  # so that isinstance(loader, DataLoader) holds
        return type(self._loader)


def shard_loader(
    loader: DataLoader, *, seed: int = 0, batch_size: int | None = None, accum_steps: int = 1
) -> DataLoader:
    """Return a loader over this rank's shard of `loader`'s samples, `batch_size` at a time; outside a group, over all.

    Of a batch sampler of the script the ranks take whole batches, or a part of each with `--batch global`. Raises
    ValueError for fewer samples than ranks or than a global batch that must be whole, TypeError for an IterableDataset.
    """
    batch_size = batch_size or size_of_batches(loader)
    _require_shardable(loader, batch_size, accum_steps)
    if not is_distributed() and batch_size == size_of_batches(loader):
        return loader
    drawn: Any = loader.batch_sampler
    settings: dict[str, Any] = {} if batch_size is None else {"batch_size": batch_size}
    if batch_size is None:
        sampler: Any = ShardedBatches(drawn, seed, splits=get_option("batch") == "global")
        batches = sampler
    else:
        sampler = drawn.sampler
        if is_distributed():
            sampler = ShardedSampler(sampler, batch_size, drop_last=drawn.drop_last, seed=seed)
        batches = BatchSampler(sampler, batch_size, drawn.drop_last)
    if is_distributed():
        settings |= of_rank(loader) | {"_of_all_ranks": loader}
    return changed_copy(loader, sampler=sampler, batch_sampler=batches, **settings)


def size_of_batches(loader: DataLoader) -> int | None:
    """Return how many samples the batches of a loader have; None where the script composes them itself."""
    batches = loader.batch_sampler
    return batches.batch_size if type(batches) is BatchSampler else loader.batch_size


def of_rank(loader: DataLoader) -> dict[str, Any]:
    """Return the settings by which the workers of this rank draw random numbers of their own."""
    # A common generator would give the workers of all ranks the same seeds, hence the same augmentation.
    return {"generator": None, "worker_init_fn": WorkerOfRank(loader.worker_init_fn, get_rank())}


def changed_copy(loader: DataLoader, **settings: Any) -> DataLoader:
    """Return a copy of `loader`, of its own class and with all its other settings."""
    copied = copy.copy(loader)
    for name, value in {"_iterator": None, **settings}.items():
        object.__setattr__(copied, name, value)  # DataLoader itself refuses to change after it was built
    return copied


def require_main_thread(drawn: Any) -> None:
    """Raise RuntimeError where a thread of the script draws what the ranks have to compare while they draw it."""
    if threading.current_thread() is not threading.main_thread():
        raise RuntimeError(
            f"a thread draws batches from {type(drawn).__name__}, over which all ranks communicate, and the gradients "
            "of the training would get in between; draw them in the loop that trains, without the thread"
        )


def without_generator(sampler: Any) -> Any:
    """Return a copy of `sampler` that draws from the global stream, which the callers seed identically on all ranks."""
    sampler = copy.copy(sampler)
    if getattr(sampler, "generator", None) is not None:
        sampler.generator = None
    return sampler


def _require_shardable(loader: DataLoader, batch_size: int | None, accum_steps: int) -> None:
    if is_distributed() and isinstance(loader.dataset, IterableDataset):
        raise TypeError(
            f"cannot shard the IterableDataset {type(loader.dataset).__name__} by its indices; use distribute_loader"
        )
    if is_distributed() and loader.batch_sampler is None:
        raise TypeError(
            f"cannot shard a loader of {type(loader.dataset).__name__} with batch_size=None; give it a batch_size"
        )
    sampler: Any = getattr(loader.batch_sampler, "sampler", None)
    total = len(sampler) if hasattr(sampler, "__len__") else -1  # without one it has no end
    if batch_size is None or total < 0 or not (total or type(sampler).__module__.startswith("torch.")):
        return
    global_batch = batch_size * get_world_size() * accum_steps
    if total == 0 or (loader.batch_sampler.drop_last and total < global_batch):  # type: ignore[union-attr]
        accumulated = f" x {accum_steps} accumulation steps" if accum_steps > 1 else ""
        raise ValueError(
            f"the training set has {total} samples, fewer than one global batch of {global_batch} ({batch_size} "
            f"per rank x {get_world_size()} ranks{accumulated}); use a smaller batch size, fewer processes or more data"
        )
    if total < get_world_size():
        raise ValueError(
            f"the training set has {total} samples, fewer than the {get_world_size()} processes that would share them; "
            f"start {total} of them at most"
        )


def loader_workers(num_workers: int) -> dict[str, Any]:
    """Return the DataLoader settings that start `num_workers` workers safely on a rank; `DataLoader(..., **these)`.

    In a process group they come from a fork server, and leave SIGINT and SIGTERM to their rank: a plain fork of a
    process with gloo or nccl threads can hang. The dataset must be picklable. Outside a group only the number is set.
    """
    if num_workers == 0 or not is_distributed():
        return {"num_workers": num_workers}
    # What the server has imported, no worker of any epoch has to import again.
    files = {name: getattr(module, "__file__", None) or "" for name, module in list(sys.modules.items())}
    packages = [name for name, file in files.items() if "-packages" in file and name.count(".") < 3]
    multiprocessing.set_forkserver_preload([name for name in packages if not name.startswith(NOT_IN_WORKERS)])
    # Ignored signals are inherited from the first moment on; a handler set in the worker would leave a gap.
    in_main_thread = threading.current_thread() is threading.main_thread()
    numbers = (signal.SIGINT, signal.SIGTERM) if in_main_thread else ()
    handlers = [signal.signal(number, signal.SIG_IGN) for number in numbers]
    try:
        forkserver.ensure_running()
    finally:
        for number, handler in zip(numbers, handlers):
            signal.signal(number, handler)
    return {"num_workers": num_workers, "multiprocessing_context": "forkserver"}


class WorkerOfRank:
    """A DataLoader's `worker_init_fn`: the worker ends when its rank does, and what `init` seeds differs by `rank`."""

    def __init__(self, init: Callable[[int], Any] | None, rank: int | None = None) -> None:
        self.init, self.rank = init, rank

    def __call__(self, worker_id: int) -> None:
        threading.Thread(target=_end_with_rank, daemon=True).start()
        if self.init is not None:
            self.init(worker_id)
            if self.rank is not None:
                mix_streams(self.rank)


def _end_with_rank() -> None:
    rank = multiprocessing.parent_process()
    assert rank is not None
    rank.join()
    os._exit(1)  # the main thread may be anywhere, and nothing reads its batches any more


# ----------------------------------------------------------------------------------------------------------------------
# DataLoaders inside the objects that hand on their batches: prefetchers, progress bars, classes of the script.


MOST_WRAPPERS = 4  # around one DataLoader


def wrapped_loaders(wrapper: Any) -> list[tuple[Any, str]]:
    """Return where `wrapper` holds its one DataLoader, if any; TypeError for no batches, several, or one begun."""
    places = loader_places(wrapper)
    for holder in _holders(wrapper):
        require_not_started(holder, (_BaseDataLoaderIter, GeneratorType) if places else (_BaseDataLoaderIter,))
    kind, loaders = type(wrapper).__name__, {id(getattr(*place)) for place in places}
    gives_batches = hasattr(type(wrapper), "__iter__") or hasattr(type(wrapper), "__next__")
    if len(loaders) == 1 or (not loaders and gives_batches):
        return places
    has = "more than one DataLoader" if loaders else "no DataLoader, and cannot be iterated"
    raise TypeError(
        f"cannot shard an object of type {kind}: it holds {has}, and every rank would train on all its batches; give "
        "distribute_loader the DataLoader that it draws from, where that is made"
    )


def require_not_started(loader: Any, kinds: tuple[type, ...] = (_BaseDataLoaderIter, GeneratorType)) -> None:
    """Raise TypeError where an object holds an iterator that was made of its DataLoader, or as one, before."""
    for name, value in getattr(loader, "__dict__", {}).items():
        if name != "_iterator" and isinstance(value, kinds):
            raise TypeError(
                f"cannot shard the DataLoader in an object of type {type(loader).__name__}: its attribute {name!r} is "
                "an iterator that was made before; give distribute_loader the DataLoader first, where that is made"
            )


def loader_places(wrapper: Any) -> list[tuple[Any, str]]:
    """Return the objects and the names of their attributes that hold a DataLoader, of an object that wraps some."""
    return [(at, name) for at in _holders(wrapper) for name, value in vars(at).items() if isinstance(value, DataLoader)]


def _holders(wrapper: Any, depth: int = MOST_WRAPPERS) -> Iterator[Any]:
    """Yield an object and the iterables in its attributes, and in theirs, that can hold a DataLoader."""
    if not hasattr(wrapper, "__dict__"):
        return
    yield wrapper
    for value in list(vars(wrapper).values()):
        if not isinstance(value, DataLoader) and depth and hasattr(type(value), "__iter__"):
            yield from _holders(value, depth - 1)


# ----------------------------------------------------------------------------------------------------------------------
# Shard a stream of samples (an IterableDataset) over the ranks, with equal numbers of steps.


PIPES: Any = getattr(
    torch.utils.data, "IterDataPipe", ()
)  # streams of which torch's DataLoader gives each rank a part by itself


class ShardedStream(IterableDataset):
    """This rank's part of a stream: each `world_size`-th sample of what every worker reads on every rank.

    All ranks read the whole stream, with the same random numbers. Attributes are those of the stream. Samples come with
    a digest of the first one, by which the ranks see that they read the same.
    """

    def __init__(self, stream: IterableDataset, seed: int) -> None:
        self.__dict__.update(stream=stream, seed=seed, rank=get_rank(), world_size=get_world_size(), epoch=-1)

    def begin(self) -> None:
        """Choose the random numbers of the next epoch; from the first one on this rank draws others of its own."""
        if self.epoch < 0:
            split_random_streams(self.seed)
        self.__dict__["epoch"] += 1

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        worker = get_worker_info()
        seed = mix_seed(self.seed, self.epoch, worker.id if worker else 0)
        _start_pipe(self.stream, mix_seed(self.seed, self.epoch), worker)
        if worker:
            self.begin()  # for the next epoch of a worker that stays
        drawn, digest = drawn_apart(self.stream, seed, number=self.world_size), ""
        while True:
            samples = list(islice(drawn, self.world_size))
            digest = digest or digest_of(samples[:1])
            if self.rank < len(samples):
                yield digest, samples[self.rank]
            if len(samples) < self.world_size:
                return

    def __len__(self) -> int:
        return -(-len(self.stream) // self.world_size)

    def __getattr__(self, name: str) -> Any:
        if name == "stream":  # while it is copied
            raise AttributeError(name)
        return getattr(self.stream, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.stream, name, value)


def digest_of(value: Any) -> str:
    """Return what differs where numbers and texts in a sample differ."""
    parts = hashlib.sha256()
    waiting = [value]
    while waiting:
        part = waiting.pop()
        if isinstance(part, (list, tuple)):
            waiting += part
        elif isinstance(part, dict):
            waiting += [*part, *part.values()]
        elif isinstance(part, (int, float, str, bytes)) or hasattr(part, "__array__"):
            parts.update(repr(part).encode())
    return parts.hexdigest()


class Counting:
    """A DataLoader's `collate_fn` that gives the digest and the number of the samples with each batch."""

    def __init__(self, collate: Any, is_batch: bool) -> None:
        self.collate, self.is_batch = collate, is_batch

    def __call__(self, data: Any) -> tuple[str, int, Any]:
        if self.is_batch:
            return data[0][0], len(data), self.collate([sample for _, sample in data])
        batch = self.collate(data[1])
        return data[0], next(first_sizes(batch), 1) or 1, batch


def _start_pipe(stream: IterableDataset, seed: int, worker: Any) -> None:
    """Let the workers of a data pipe mix it in the same way and read a part each, as in torch's DataLoader."""
    if isinstance(stream, PIPES):
        graph_settings = torch.utils.data.graph_settings
        graph_settings.apply_random_seed(stream, torch.Generator().manual_seed(seed))
        graph_settings.apply_sharding(stream, worker.num_workers if worker else 1, worker.id if worker else 0)


def _read_whole_pipes() -> None:
    """Let torch's DataLoader give every rank all of a data pipe; only `distribute_loader` gives a rank its part."""
    if PIPES:
        torch.utils.data.dataloader._get_distributed_settings = lambda: (1, 0)


before_joining.append(_read_whole_pipes)


def shard_stream(loader: DataLoader, seed: int, batch_size: int | None) -> DataLoader:
    """Return a loader over this rank's part of a stream, for `stream_batches`.

    Raises ValueError where the stream gives whole batches, and a global batch is asked for.
    """
    if batch_size is None and get_option("batch") == "global":
        raise ValueError(
            f"--batch global splits each batch over all ranks, and {type(loader.dataset).__name__} gives whole "
            "ones, of which every rank takes others; leave --batch at per_gpu, or give the DataLoader a batch_size"
        )
    dataset: Any = loader.dataset
    settings = of_rank(loader) | {"dataset": ShardedStream(dataset, seed), "_of_all_ranks": loader}
    if batch_size is not None:
        batches = BatchSampler(loader.sampler, batch_size, loader.drop_last)
        settings |= {"batch_size": batch_size, "batch_sampler": batches}
    return changed_copy(loader, collate_fn=Counting(loader.collate_fn, batch_size is not None), **settings)


def stream_batches(loader: DataLoader, ahead: DrawnAhead) -> Iterator[Any]:
    """Yield this rank's batches of an epoch. Collective at every batch, so in the thread that trains.

    A rank that has no more repeats its last one, which counts nothing, until no rank has any; with `drop_last` the
    epoch ends for all.
    """
    stream: Any = loader.dataset
    require_main_thread(stream.stream)
    stream.begin()
    ahead.begin()
    batches, batch, length = iter(loader), None, 0
    for number in count(1):
        begin_step(f"batch {number} of epoch {stream.epoch + 1}")
        digest, size, drawn = next(batches, ("", 0, None))
        sizes = _sizes(size)
        if number == 1:
            _require_same(stream, digest, sizes)
        if not any(sizes) or (0 in sizes and loader.drop_last):
            ahead.end()
            return
        if size:
            batch, length = drawn, size
        is_in_turn = loader.batch_size is not None and sizes == _in_turn(sum(sizes))
        weight = size * len(sizes) / sum(sizes)
        with using(Batch(length, max(sizes), weight, tuple(sizes), is_in_turn), ahead):
            yield batch


def _in_turn(total: int) -> list[int]:
    """Return how many of so many samples each rank has where these go to the ranks in turn."""
    return [len(range(rank, total, get_world_size())) for rank in range(get_world_size())]


def _require_same(stream: ShardedStream, digest: str, sizes: list[int]) -> None:
    """Raise where the ranks read different samples, or where not every rank has one. Collective."""
    name = type(stream.stream).__name__
    if 0 in sizes and any(sizes):
        raise ValueError(f"{name} has fewer samples than there are ranks ({len(sizes)}); use fewer processes")
    if len(set(gather_objects(digest))) > 1:
        raise RuntimeError(
            f"the ranks read different samples from {name}, so some would be trained on twice and others not at all; "
            "it must draw its random numbers from torch, numpy or random, or from a generator that is seeded the same "
            "on every rank"
        )


def _sizes(size: int) -> list[int]:
    """Return how many samples each rank has."""
    own = torch.zeros(get_world_size(), dtype=torch.int64)
    own[get_rank()] = size
    return reduce_tensor_sum(own).tolist()


# ----------------------------------------------------------------------------------------------------------------------
# Batches that something other than a DataLoader gives, a class or a generator: each rank takes its own.


MOST_PARTS = 1000  # of a batch that are looked at


class BatchesInTurn:
    """This rank's batches of an iterable that gives every rank the same ones: each `world_size`-th, from its rank on.

    All ranks draw all batches with the same random numbers, others in each pass. Of the script's own streams torch's is
    this rank's from then on, those of python and numpy stay common: what a script shuffles between the passes has one
    order everywhere. A rank that has no more repeats its last one, which counts nothing, until no rank has any. With
    `--batch global` each rank takes its rows of every batch, or a `whole_batch` with `keeps`, and where parts differ in
    their number of rows. Attributes are those of the iterable. Collective at every batch, in the thread that trains.
    Raises RuntimeError where the ranks draw different batches, ValueError where there are fewer batches than ranks.
    """

    def __init__(self, batches: Iterable[Any], seed: int, keeps: bool = False) -> None:
        self.__dict__.update(_seed=seed, _keeps=keeps, _passes=0, _started=False, _running=None)
        self.__dict__.update(_batches=batches, _ahead=DrawnAhead(), _full=set())

    def __iter__(self) -> Iterator[Any]:
        require_main_thread(self._batches)
        if not self._started:
            _split_torch_stream(self._seed)
        self.__dict__.update(_started=True, _passes=self._passes + 1)
        self._ahead.begin()
        yield from self._split() if get_option("batch") == "global" else self._whole()
        self._ahead.end()

    def __next__(self) -> Any:
        if self._running is None:
            self.__dict__["_running"] = iter(self)
        try:
            return next(self._running)
        except StopIteration:
            self.__dict__["_running"] = None
            raise

    def __len__(self) -> int:
        length = len(self._batches)  # type: ignore[arg-type]
        return length if get_option("batch") == "global" else -(-length // get_world_size())

    def __getitem__(self, key: Any) -> Any:
        if isinstance(self._batches, (list, tuple, torch.Tensor)):
            raise TypeError(
                "rd.distribute_loader was given samples, of which something takes a part by an index; give it what "
                "yields the batches: for batch in rd.distribute_loader(batches(samples))"
            )
        return self._batches[key]  # type: ignore[index]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # while it is copied
            raise AttributeError(name)
        return getattr(self._batches, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._batches, name, value)

    def set_epoch(self, epoch: int) -> None:
        """Choose the random numbers of the next pass."""
        self.__dict__["_passes"] = epoch

    def _drawn(self, number: int) -> Iterator[Any]:
        return drawn_apart(self._batches, mix_seed(self._seed, self._passes), number=number)

    def _whole(self) -> Iterator[Any]:
        """Yield each `world_size`-th batch."""
        rank, world_size = get_rank(), get_world_size()
        drawn, own, last = self._drawn(world_size), None, None
        for number in count(1):
            begin_step(f"batch {number} of pass {self._passes}")
            turn = [batch for _, batch in zip(range(world_size), drawn)]
            self._require_same(turn, is_first=number == 1)
            if not turn:
                self._full.discard(last)
                return
            own = turn[rank] if rank < len(turn) else own
            axis, last = self._axis(turn), next(_shapes_of(turn[-1]), (1,))
            sizes = [_length_of(batch, axis) for batch in turn] + [0] * (world_size - len(turn))
            weight = sizes[rank] * world_size / sum(sizes)
            with using(Batch(_length_of(own, axis), max(sizes), weight, tuple(sizes), is_in_turn=False), self._ahead):
                yield own

    def _split(self) -> Iterator[Any]:
        """Yield each `world_size`-th row of every batch, or all of them."""
        rank, world_size, full = get_rank(), get_world_size(), 0
        for number, batch in enumerate(self._drawn(1), 1):
            begin_step(f"batch {number} of pass {self._passes}")
            self._require_same([batch] * world_size, is_first=number == 1)
            total = 0 if self._keeps else _common_length(batch)
            if total == 0:
                with using(whole_batch(_length_of(batch, 0)), self._ahead):
                    yield batch
                continue
            of_ranks = tuple(len(range(part, total, world_size)) for part in range(world_size))
            full = max(full, of_ranks[0])
            rows = slice(rank, None, world_size) if of_ranks[rank] else slice(rank % total, rank % total + 1)
            own = Batch(max(of_ranks[rank], 1), full, of_ranks[rank] * world_size / total, of_ranks)
            with using(own, self._ahead):
                yield _rows_taken(batch, rows)

    def _axis(self, turn: list[Any]) -> int:
        """Return the dimension of the samples: the second where batches before the last differ in the first alone."""
        shapes = [next(_shapes_of(batch), (1,)) for batch in turn]
        self._full.update(shapes[:-1])
        firsts, seconds = {shape[0] for shape in self._full}, {shape[1:2] for shape in self._full}
        axis = int(len(firsts) > 1 and len(seconds) == 1 and seconds != {()})
        self._full.add(shapes[-1])  # it is the last of a pass, and may be shorter, where no other turn follows
        return axis

    def _require_same(self, turn: list[Any], is_first: bool) -> None:
        """Raise where the ranks have drawn different batches, or another number of them. Collective: every rank."""
        found = gather_objects((len(turn), digest_of([*_parts_of(turn[0])]) if turn and is_first else ""))
        name = type(self._batches).__name__
        if len(set(found)) > 1:
            raise RuntimeError(
                f"the ranks draw different batches from {name}, so some would be trained on twice and others not at "
                "all; it must draw its random numbers from torch, numpy or random while it gives batches, or be "
                "shuffled in the same way on every rank: rd.data.draw_together(random.shuffle, samples)"
            )
        if is_first and turn and len(turn) < get_world_size():
            raise ValueError(
                f"{name} gives {len(turn)} batches, fewer than there are ranks ({get_world_size()}), and each rank "
                "takes batches of its own; use fewer processes, or --batch global, which splits every batch"
            )


def _split_torch_stream(seed: int) -> None:
    """Let this rank draw others of torch's random numbers. Those of python and numpy stay: scripts shuffle by them."""
    common = get_rng_state()
    split_random_streams(seed)
    set_rng_state(common | {name: state for name, state in get_rng_state().items() if name in ("torch", "cuda")})


def _parts_of(batch: Any) -> Iterator[Any]:
    """Yield what a batch consists of: tensors, arrays, texts and numbers in containers and in objects of the script."""
    waiting, seen = [batch], 0
    while waiting and seen < MOST_PARTS:
        part, seen = waiting.pop(0), seen + 1
        if isinstance(part, Mapping):
            waiting += part.values()
        elif isinstance(part, (list, tuple)):
            waiting += part
        elif isinstance(part, (int, float, str, bytes)) or hasattr(part, "__array__"):
            yield part
        elif hasattr(part, "__dict__") and not isinstance(part, type) and not callable(part):
            waiting += [
                value for value in vars(part).values() if isinstance(value, (torch.Tensor, list, tuple, Mapping))
            ]


def _shapes_of(batch: Any) -> Iterator[tuple[int, ...]]:
    """Yield the shapes of the tensors and arrays in a batch."""
    yield from (tuple(part.shape) for part in _parts_of(batch) if getattr(part, "shape", ()))


def _length_of(batch: Any, axis: int) -> int:
    """Return the number of samples in a batch."""
    for shape in _shapes_of(batch) if not _is_list_of_samples(batch) else ():
        return shape[axis] if len(shape) > axis else shape[0]
    lengths = {len(p) if isinstance(p, (list, tuple)) else -1 for p in (batch if isinstance(batch, tuple) else ())}
    if len(lengths) == 1 and -1 not in lengths:  # lists of inputs and of targets
        return max(*lengths, 1)
    return len(batch) if isinstance(batch, (list, tuple)) else 1


def _is_list_of_samples(batch: Any) -> bool:
    """Return whether a batch is a list with an entry per sample, as more than three tensors of one kind are."""
    parts = batch if isinstance(batch, list) else []
    kinds = {(part.dtype, part.shape[1:]) if hasattr(part, "dtype") else None for part in parts}
    is_known = all(isinstance(part, (Number, str, tuple, Mapping)) for part in parts)
    return bool(parts) and (is_known or (len(parts) > 3 and len(kinds) == 1 and None not in kinds))


def _common_length(batch: Any) -> int:
    """Return the number of rows that all tensors, arrays and lists of a batch have; 0 where it is not clear."""
    if _is_list_of_samples(batch):
        return len(batch)
    parts = batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, (list, tuple)) else [batch]
    numbers = {len(part) if hasattr(part, "__getitem__") and not isinstance(part, str) else 0 for part in parts}
    firsts = {(*getattr(part, "shape", ()), 0)[0] for part in _parts_of(batch)}  # of ([moving, fixed], [fixed]): no row
    are_lists = any(isinstance(part, (list, tuple)) and not _is_list_of_samples(part) for part in parts)
    is_unclear = are_lists and len(firsts) == 1 and firsts != {0}
    return 0 if len(numbers) != 1 or is_unclear or {type(batch), *map(type, parts)} == {list} else numbers.pop()


def _rows_taken(batch: Any, rows: slice) -> Any:
    """Return rows of all parts of a batch, in a container of the same kind."""
    if _is_list_of_samples(batch) or not isinstance(batch, (Mapping, list, tuple)):
        return rows_of(batch, rows)
    if isinstance(batch, Mapping):
        return type(batch)({name: rows_of(part, rows) for name, part in batch.items()})  # type: ignore[call-arg]
    parts = [rows_of(part, rows) for part in batch]
    return type(batch)(*parts) if hasattr(batch, "_fields") else type(batch)(parts)


# ----------------------------------------------------------------------------------------------------------------------
# Training loaders over all ranks, and the batch sizes that follow from them; the identity outside a group.


DRAWS_FROM_SAMPLER = frozenset({"__iter__", "_get_iterator", "sampler", "batch_sampler"})  # names in a class
_times_called: Counter[tuple[str, int]] = Counter()  # distribute_loader, by the line of the script


def distribute_loader(
    loader: Any, *, seed: int | None = None, accum_steps: int = 1, keep_batches: bool = False, pad_whole: bool = False
) -> Any:
    """Return a training loader over this rank's shard of `loader`'s samples.

    Its batches have `micro_batch(loader.batch_size, accum_steps)` samples; its `batch_size` is that of `loader`. From
    its first iteration on each rank draws random numbers of its own: no two augment the same way. A loader that the
    same line creates again has a new order. `seed` is rank 0's by default. Of an object that wraps a DataLoader that
    one is sharded; of another iterable of batches each rank takes whole ones (`BatchesInTurn`). With `--batch global`,
    `keep_batches` lets every rank compute each batch of the script's own making whole, and rank 0's counts;
    `pad_whole` lets each rank make whole batches and take its rows, padded as those of the others. Collective: every
    rank. Raises what `shard_loader` and `micro_batch` raise, RuntimeError before setup_distributed, TypeError for what
    gives no batches, or several DataLoaders.
    """
    require_group("distribute_loader")
    line = (caller := sys._getframe(1)).f_code.co_filename, caller.f_lineno
    is_whole = pad_whole and get_option("batch") == "global" and get_world_size() > 1 and not is_shard(loader)
    if isinstance(loader, DataLoader) and not _draws_by_itself(loader) and not is_whole:
        return _distributed(loader, seed, accum_steps, line, keep_batches)
    if get_world_size() == 1 or isinstance(loader, BatchesInTurn):
        return loader
    places = [] if is_whole else wrapped_loaders(loader)
    for holder, name in places:
        object.__setattr__(holder, name, _distributed(getattr(holder, name), seed, accum_steps, line, keep_batches))
    return loader if places else _given_in_turn(loader, seed, line, keep_batches)


def _distributed(loader: DataLoader, seed: int | None, accum_steps: int, line: Any, keeps: bool) -> DataLoader:
    if is_shard(loader):
        return loader
    if get_world_size() > 1:
        require_not_started(loader)
    seed = _common_seed(seed)
    whole = size_of_batches(loader)
    size = None if whole is None else micro_batch(whole, accum_steps)
    if isinstance(loader.dataset, IterableDataset):
        if get_world_size() == 1:
            return loader
        iterate = partial(stream_batches, ahead=DrawnAhead())
        return DistributedLoader(shard_stream(loader, seed, size), iterate)  # type: ignore[return-value]
    sharded = shard_loader(loader, seed=seed, batch_size=size, accum_steps=accum_steps)
    if not isinstance(sharded.sampler, ShardedSampler):
        return sharded
    sharded.sampler.kept = keeps
    sharded.sampler.set_epoch(_times_called[line])
    _times_called[line] += 1
    ahead = DrawnAhead(sharded.sampler.is_even)
    return DistributedLoader(sharded, partial(training_batches, ahead=ahead))  # type: ignore[return-value]


def _draws_by_itself(loader: DataLoader) -> bool:
    """Return whether the class of a loader gives batches of its own, past the sampler that it may have."""
    kinds = [kind for kind in type(loader).__mro__ if issubclass(kind, DataLoader) and kind is not DataLoader]
    codes = (getattr(part, "__code__", None) for kind in kinds for part in vars(kind).values())
    names = {name for code in codes if code for name in code.co_names}
    return any("__iter__" in vars(kind) for kind in kinds) and names.isdisjoint(DRAWS_FROM_SAMPLER)


def _given_in_turn(batches: Any, seed: int | None, line: tuple[str, int], keeps: bool) -> BatchesInTurn:
    shared = BatchesInTurn(batches, _common_seed(seed), keeps)
    shared.set_epoch(_times_called[line])
    _times_called[line] += 1
    return shared


def _common_seed(seed: int | None) -> int:
    """Return the seed, or rank 0's: or the shards of an unseeded script would overlap."""
    return broadcast_object(torch.initial_seed()) % 2**31 if seed is None else seed


def is_shard(loader: Any) -> bool:
    """Return whether a loader has this rank's part of the samples already."""
    return isinstance(loader, BatchesInTurn) or hasattr(loader, "_of_all_ranks")


def whole_loader(loader: Any) -> Any:
    """Return what `loader` is this rank's part of; every other one is itself."""
    return loader._batches if isinstance(loader, BatchesInTurn) else getattr(loader, "_of_all_ranks", loader)


def set_epoch(loader: Any, epoch: int) -> None:
    """Choose the order of a training loader's next iteration, of one that is sharded, by the number of the epoch."""
    is_wrapped = not isinstance(loader, (BatchesInTurn, DataLoader))
    for each in [getattr(*place) for place in loader_places(loader)] if is_wrapped else [loader]:
        chosen = each if isinstance(each, BatchesInTurn) else each.sampler
        if hasattr(chosen, "set_epoch"):
            chosen.set_epoch(epoch)


def micro_batch(batch_size: int, accum_steps: int = 1) -> int:
    """Return the number of samples in one rank's micro batch: `batch_size`, or its part of it with `--batch global`.

    Raises ValueError for sizes below 1, and for a global batch that cannot be split evenly.
    """
    for name, value in (("batch size", batch_size), ("accum_steps", accum_steps)):
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
    if get_option("batch") != "global":
        return batch_size
    world_size = get_world_size()
    size, rest = divmod(batch_size, world_size * accum_steps)
    if rest:
        by = f"world size ({world_size})" + (f" x accum_steps ({accum_steps})" if accum_steps > 1 else "")
        use = " or ".join(str(size * world_size * accum_steps) for size in (size, size + 1) if size)
        raise ValueError(f"global batch ({batch_size}) is not divisible by {by}; use {use}")
    return size


def keep_total_batch() -> None:
    """Let a batch size count all processes, as `--batch global` does: each keeps its rows of every batch."""
    set_options(SimpleNamespace(batch="global"))  # type: ignore[arg-type]


def own_batches(number: int) -> int:
    """Return how many whole batches this rank draws of so many that one process does: all with `--batch global`."""
    return number if get_option("batch") == "global" else number // get_world_size() or number


def own_batch_size(batch_size: int, samples: Any = ()) -> int:
    """Return how many samples this rank has of the training batch in use, for what is shaped by the batch size.

    `micro_batch(batch_size)`, which may raise ValueError; fewer in a last batch, all in an evaluation (of `samples`).
    """
    is_whole = not batches_in_use or batch_size in first_sizes(samples, slice(1))
    if get_world_size() == 1 or (is_whole and not torch.is_grad_enabled()):
        return batch_size
    full = micro_batch(batch_size)
    lengths = {batch.length for batch in batches_in_use.values() if batch.full == full}
    return lengths.pop() if len(lengths) == 1 else full


def samples_per_step(batch_size: int, accum_steps: int = 1) -> int:
    """Return how many samples all ranks take in an optimizer step; raises RuntimeError before setup_distributed."""
    require_group("samples_per_step")
    return micro_batch(batch_size, accum_steps) * get_world_size() * accum_steps


# ----------------------------------------------------------------------------------------------------------------------
# Training batches that a script draws itself, without a DataLoader: this rank's samples of each.


Line = tuple[str, int]  # of the script
_times_taken = 0  # batches, over all lines
_taken_at: dict[Line, int] = {}  # which of them was a line's last one
_full: dict[Line, int] = {}  # samples of a rank in the longest batch of a line
_own_seed: int | None = None  # of this rank's stream, once it has one
_is_whole = False  # while a batch of whole_batches is made


def batch_of_ranks(batch_size: int) -> int:
    """Return how many samples all ranks have in one batch: `micro_batch(batch_size)` each, which may raise."""
    require_group("batch_of_ranks")
    return batch_size if get_world_size() == 1 or _is_whole else micro_batch(batch_size) * get_world_size()


def own_draw(batch: Any, batch_size: int | None = None) -> Any:
    """Return this rank's samples of a batch that rank 0 has drawn; what the other ranks have drawn is not used.

    `batch`: indices or samples, as a tensor, an array or a list with an entry per sample, or a tuple of these. It is
    drawn for all ranks: `batch_of_ranks(batch_size)` samples. From the first call on every rank draws other random
    numbers of its own. Raises ValueError where `batch_size` is given and a part of the batch has another number of rows
    than `batch_of_ranks(batch_size)`: they are not known to be samples then. Collective: every rank.
    """
    if not is_distributed():
        return batch
    if batch_size is not None:
        batch = _require_rows(batch, batch_of_ranks(batch_size))
    return _taken(_of_main(batch), sys._getframe(1))


def _require_rows(batch: Any, total: int) -> Any:
    """Return a batch that has `total` rows in all its parts: a tuple of them for a list, or for what zip() gives."""
    is_several = isinstance(batch, (tuple, zip, map)) or (isinstance(batch, list) and len(batch) != total)
    batch = tuple(batch) if is_several else batch
    lengths = [len(part) if hasattr(part, "__len__") else 1 for part in (batch if is_several else [batch])]
    if set(lengths) != {total}:
        raise ValueError(
            f"a batch of {total} samples was asked for, and its parts have {lengths} rows: split it by hand, with "
            "rd.data.own_part for each part whose rows are samples"
        )
    return batch


def own_part(batch: Any) -> Any:
    """Return this rank's samples of a batch that is the same on all ranks: each `world_size`-th one, from its rank on.

    `batch` is what `own_draw` takes. Where a last batch has fewer samples than there are ranks, the first ones are
    repeated; they count nothing. From the first call on every rank draws other random numbers of its own.
    """
    return _taken(batch, sys._getframe(1)) if is_distributed() else batch


def whole_batches(batches: Any) -> Any:
    """Return batches that every rank uses whole: what draws and splits those of a training leaves these as they are.

    `batches`: a generator of the script that both use, for an evaluation, or a function that gives one batch, or that
    evaluates. Every rank must use it as often as the others, where it draws random numbers.
    """
    if is_distributed() and callable(batches):
        return lambda *args, **kwargs: next(_made_whole(batches(*args, **kwargs) for _ in range(1)))
    return _made_whole(batches) if is_distributed() else batches


def _made_whole(batches: Iterable[Any]) -> Iterator[Any]:
    global _is_whole
    drawing, end = (tuple(b) if isinstance(b, Iterator) else b for b in chain.from_iterable([batches])), object()
    while True:  # no part of a batch, nor iter(batches), draws before or later
        before, _is_whole, in_use = _is_whole, True, dict(batches_in_use)
        batches_in_use.clear()  # a training's, which may still need them later
        try:
            batch = next(drawing, end)
        finally:
            _is_whole = before
            batches_in_use.update(in_use)
        if batch is end:
            return
        yield batch


@collective
def draw_together(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Return `function(*args, **kwargs)`, in which every rank draws the random numbers of rank 0: a common order.

    The other ranks then continue with their own random streams. Of a generator that it returns each entry is drawn in
    this way. Collective: every rank.
    """
    if not is_distributed():
        return function(*args, **kwargs)
    drawn = _drawn_together(function, *args, **kwargs)
    return _each_together(drawn) if isinstance(drawn, GeneratorType) else drawn


def _each_together(drawn: Iterator[Any]) -> Iterator[Any]:
    end = object()
    while (entry := _drawn_together(next, drawn, end)) is not end:
        yield entry


def _drawn_together(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    own, common = get_rng_state(), broadcast_object(get_rng_state())
    if get_rank() == 0:
        return function(*args, **kwargs)
    set_rng_state(common)
    try:
        return function(*args, **kwargs)
    finally:
        set_rng_state(own)


@collective
def _of_main(batch: Any) -> Any:
    """Return a batch as rank 0 has it. Tensors travel as they are, everything else as an object."""
    if isinstance(batch, torch.Tensor):
        shared = batch.detach().clone(memory_format=torch.contiguous_format)
        is_on_gpu = shared.device.type != "cpu" or dist.get_backend() != "nccl" or group_for(shared) is not None
        shared = shared if is_on_gpu else shared.cuda()
        dist.broadcast(shared, src=0, group=group_for(shared))
        return shared.to(batch.device).requires_grad_(batch.requires_grad)
    if isinstance(batch, tuple) and any(isinstance(part, torch.Tensor) for part in batch):
        return tuple(_of_main(part) for part in batch)
    return broadcast_object(batch)


def _taken(batch: Any, frame: FrameType) -> Any:
    """Return this rank's samples and note that they are in use, until the same line takes others."""
    global _times_taken
    line = frame.f_code.co_filename, frame.f_lineno
    lengths = {len(part) for part in batch} if isinstance(batch, tuple) else {len(batch)}
    if _is_whole or lengths == {0}:
        return batch
    if len(lengths) != 1:
        raise ValueError(f"a batch needs as many entries as samples in all its parts; got {lengths}")
    (total,) = lengths
    _split_streams()
    of_ranks = tuple(len(range(rank, total, get_world_size())) for rank in range(get_world_size()))
    own = of_ranks[get_rank()]
    length = max(own, 1)
    _full[line] = max(_full.get(line, 0), length)
    _forget_unused(line)
    _taken_at[line] = _times_taken = _times_taken + 1
    batches_in_use[line] = Batch(length, _full[line], own * get_world_size() / total, of_ranks)
    begin_step(f"batch {_times_taken}")
    return tuple(_rows(part, total) for part in batch) if isinstance(batch, tuple) else _rows(batch, total)


def _split_streams() -> None:
    """Let this rank draw random numbers of its own from now on, also after the script has seeded its streams again."""
    global _own_seed
    if torch.initial_seed() != _own_seed:
        split_random_streams(torch.initial_seed() % 2**31)
        _own_seed = torch.initial_seed()


def _forget_unused(line: Line) -> None:
    """Forget the batches of lines that have taken none since this line took its last one: that loop has ended."""
    last = _taken_at.get(line, 0)
    for other in [other for other, taken in _taken_at.items() if taken < last]:
        del _taken_at[other]
        batches_in_use.pop(other, None)


def _rows(part: Any, total: int) -> Any:
    rank = get_rank()
    rows = slice(rank, None, get_world_size()) if rank < total else slice(rank % total, rank % total + 1)
    if not (isinstance(part, torch.Tensor) and part.requires_grad and part.is_leaf):
        return rows_of(part, rows)
    return part.detach()[rows].clone().requires_grad_()


# ----------------------------------------------------------------------------------------------------------------------
# The learning rate for the batch of all ranks.


def scaled_lr(lr: Any, accum_steps: int = 1) -> Any:
    """Return the learning rate for the batch of all ranks, for one that was chosen for the script's batch size.

    `lr`: a number, several, or a group of parameters. `--lr_scale`: linear, times `world_size * accum_steps` (Goyal et
    al. 2017, arXiv 1706.02677); sqrt, by its root (Krizhevsky 2014, arXiv 1404.5997); none, as with `--batch global`.
    """
    factor = get_world_size() * accum_steps
    if get_option("batch") == "global" or factor == 1:
        return lr
    if isinstance(lr, (list, tuple)):
        return type(lr)(scaled_lr(rate, accum_steps) for rate in lr)
    if isinstance(lr, dict):
        return {key: scaled_lr(rate, accum_steps) if key == "lr" and rate else rate for key, rate in lr.items()}
    return lr * {"linear": factor, "sqrt": factor**0.5, "none": 1}[get_option("lr_scale")]


def scale_optimizer(optimizer: Optimizer) -> Optimizer:
    """Return `optimizer` with every learning rate in it, also that of groups to come, put through `scaled_lr`."""
    for group in (optimizer.defaults, *optimizer.param_groups):
        if isinstance(group.get("lr"), (float, int, torch.Tensor)):  # Adafactor finds its own, a default may be missing
            group["lr"] = scaled_lr(group["lr"])
    return optimizer


# ----------------------------------------------------------------------------------------------------------------------
# Split an evaluation over the ranks by whole batches, and reduce its results.


_shares: WeakKeyDictionary[DataLoader, Any] = WeakKeyDictionary()  # of share_batches
_depth = 0  # of iterations over batches that this rank alone evaluates


def share_batches(batches: Iterable[Any]) -> Iterable[Any]:
    """Return this rank's batches of an evaluation: of a DataLoader a loader that reads no other ones.

    Of a shard they are those of its whole loader. Ranks can have different numbers, or none, so nothing collective may
    happen per batch. While they are used, also with gradients, models in evaluation mode and losses are the rank's own.
    """
    if not is_distributed():
        return batches
    batches = whole_loader(batches)
    if not isinstance(batches, DataLoader) or isinstance(batches.dataset, IterableDataset):
        return _while_sharing(islice(batches, get_rank(), None, get_world_size()))
    if batches not in _shares:
        place = "sampler" if batches.batch_sampler is None else "batch_sampler"
        sampler = _InTurn(getattr(batches, place))
        share = changed_copy(batches, worker_init_fn=WorkerOfRank(batches.worker_init_fn), **{place: sampler})
        _shares[batches] = DistributedLoader(share, _while_sharing)
    return _shares[batches]


class _InTurn(Sampler):
    """This rank's part of what rank 0 draws from a sampler: each `world_size`-th. Collective as it begins: every rank.

    So what a script seeds just before an evaluation chooses the batches, as in one process.
    """

    def __init__(self, sampler: Any) -> None:
        self.sampler = sampler

    def __iter__(self) -> Iterator[Any]:
        order: Any = broadcast_object(list(self.sampler) if get_rank() == 0 else None)
        yield from order[get_rank() :: get_world_size()]

    def __len__(self) -> int:
        return len(range(get_rank(), len(self.sampler), get_world_size()))


def _while_sharing(batches: Iterable[Any]) -> Iterator[Any]:
    global _depth
    _depth += 1
    try:
        yield from batches
    finally:
        _depth -= 1


def is_sharing() -> bool:
    """Return whether batches of `share_batches` or `same_batches` are being used."""
    return _depth > 0


def same_batches(loader: DataLoader) -> Iterable[Any]:
    """Return the batches of an evaluation that every rank runs whole, also of a shard: the same draws and order on all.

    What is drawn while they are used, for a mask or noise, comes from rank 0's streams, so what the script seeds just
    before is that of one process. Then each rank continues with its own. Every rank must iterate as often as others.
    """
    return DistributedLoader(whole_loader(loader), _same_pass) if is_distributed() else loader


def _same_pass(loader: DataLoader) -> Iterator[Any]:
    own = get_rng_state()
    share_random_state()
    try:
        yield from _while_sharing(loader)
    finally:
        if get_rank() > 0:
            set_rng_state(own)


def sum_over_ranks(*values: Any, of: DataLoader | None = None) -> Any:
    """Return the sums over all ranks of numbers, arrays or tensors, each of its own type; one value comes back bare.

    With `of`, the loader that they come from, only where that gives each rank a share of its own. Collective: every
    rank, the same number of values. Sums are formed in rank order, so all ranks have the same bits.
    """
    if is_distributed() and (of is None or is_shard(of)):
        values = tuple(functools.reduce(operator.add, of_ranks) for of_ranks in zip(*gather_values(values)))
    return values if len(values) != 1 else values[0]


def gather_batches(*lists: list[Any]) -> Any:
    """Return lists with one entry per batch as one process would have filled them; one list comes back bare.

    Collective: every rank, the same number of lists, each filled in a loop over `share_batches`.
    """
    if is_distributed():
        lists = tuple(in_turn(of_ranks) for of_ranks in zip(*gather_values(lists)))
    return lists if len(lists) != 1 else lists[0]


def sum_attributes(meter: Any, *names: str, of: DataLoader | None = None, **derived: Callable[[Any], Any]) -> None:
    """Sum attributes of an object over all ranks, then set those that follow from them; `of` as in `sum_over_ranks`.

    `sum_attributes(meter, "sum", "count", avg=lambda m: m.sum / m.count)`. Collective: every rank.
    """
    if not is_distributed() or (of is not None and not is_shard(of)):
        return
    for name in names:
        setattr(meter, name, sum_over_ranks(getattr(meter, name)))
    for name, formula in derived.items():
        setattr(meter, name, formula(meter))


# ----------------------------------------------------------------------------------------------------------------------
# Losses over the batch of all ranks: what to call backward on, what to divide by, criteria of libraries.


def _is_of_all_ranks() -> bool:
    return get_world_size() > 1 and torch.is_grad_enabled() and not is_sharing()


def sum_loss(loss: torch.Tensor) -> torch.Tensor:
    """Return what to call backward on for a loss, or a term of one, that is a sum over this rank's samples."""
    return loss * (get_world_size() / (weight_of() or 1.0)) if _is_of_all_ranks() else loss


def batch_count(count: Any) -> Any:
    """Return the sum over ranks of a count of this rank's batch: its samples, or those of its elements that matter.

    A mean is divided by it, a sum by `rank_share` of it. Collective: every rank, in training.
    """
    return total_of_ranks(without_repeated(count)) if _is_of_all_ranks() else count


def global_batch(batch_size: Any) -> Any:
    """Return how many samples all ranks have in a batch of `batch_size` per rank; `--batch global`: the same."""
    return batch_size * get_world_size() if _is_of_all_ranks() and get_option("batch") != "global" else batch_size


def part_of_mean(loss: torch.Tensor) -> torch.Tensor:
    """Return a mean over this rank's samples, of which the gradients with respect to them are those of one process.

    The loss itself outside a training batch, and where a rank has a batch of its own: those of its batch.
    """
    is_part = _is_of_all_ranks() and batches_in_use and get_option("batch") == "global"
    return loss * ((weight_of() or 1.0) / get_world_size()) if is_part else loss


def whole_batch_size(batch_size: int) -> int:
    """Return how many samples the batch in use has over all ranks, for a loss that is shaped by the batch size.

    `batch_size`: the setting, of one process; returned as it is outside a training.
    """
    if not _is_of_all_ranks() or not batches_in_use:
        return batch_size
    totals = {sum(batch.of_ranks) for batch in batches_in_use.values() if batch.full == micro_batch(batch_size)}
    return totals.pop() if len(totals) == 1 else global_batch(batch_size)


def rank_share(count: Any) -> Any:
    """Return by what a rank divides its sum to get the gradients of a mean over all ranks; `count`: of all of them."""
    if not _is_of_all_ranks():
        return count
    if isinstance(count, torch.Tensor) and not count.dim():
        count = count.double()  # a third is not exact; of a single number the type of the loss stays
    return count * (weight_of() or 1.0) / get_world_size()


class _SumOverRanks(torch.autograd.Function):
    """The sum over ranks, for losses of all ranks that DDP averages. `weight`: that of this rank's batch."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, weight: float) -> torch.Tensor:
        ctx.weight = 1.0 if is_running_forward() else weight  # gradients come into a model with their weight
        return reduce_tensor_sum(tensor * 0 if weight == 0 else tensor)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return reduce_tensor_sum(gradients[0].contiguous() * ctx.weight) / (ctx.weight or 1.0), None


def batch_sum(tensor: torch.Tensor, learns: bool = True) -> torch.Tensor:
    """Return the sum over ranks of a sum over this rank's samples, with gradients: a numerator, a denominator.

    `learns=False`: for what is computed under torch.no_grad() in training, as the statistics of a codebook are.
    Collective: every rank, in training, forward and backward.
    """
    if not learns:
        return tensor if is_sharing() else reduce_total(tensor)
    return _SumOverRanks.apply(tensor, weight_of()) if _is_of_all_ranks() else tensor


def batch_mean(tensor: torch.Tensor, learns: bool = True) -> torch.Tensor:
    """Return the mean over all samples of a mean over this rank's, as `batch_sum`. Collective: every rank."""
    is_of_all = _is_of_all_ranks() if learns else get_world_size() > 1 and bool(batches_in_use) and not is_sharing()
    return batch_sum(tensor * (weight_of() / get_world_size()), learns) if is_of_all else tensor


def chosen_mean(values: torch.Tensor, *axes: Any, **options: Any) -> torch.Tensor:
    """Return `values.mean(*axes, **options)` of what a mask leaves of this rank's batch, so that DDP averages right.

    A rank counts by its share of all elements: the mean over ranks is that of the whole batch, and so are the
    gradients. One without elements adds nothing. Collective: every rank, in training.
    """
    if not _is_of_all_ranks():
        return values.mean(*axes, **options)
    count = without_repeated(values.numel())
    share = rank_share(batch_count(count))
    if not count:
        return without_repeated(values.sum(*axes, **options)) / share
    return values.mean(*axes, **options) * (count / share)


def batch_rows(rows: torch.Tensor, views: bool = False) -> torch.Tensor:
    """Return the rows of the whole batch in the order of one process, with gradients; `rows`: those of this rank.

    For a loss that compares the samples of a batch: what is computed of it is the same on all ranks, for the memory of
    the whole batch's rows. Each sample has as many rows, which are next to each other; with `views` the rows of several
    views follow one another, as torch.cat([a, b]) has them. Raises RuntimeError where that cannot be. Collective: every
    rank, in training, forward and backward.
    """
    if not _is_of_all_ranks() or not batches_in_use:
        return rows
    batch = _batch_of_rows(rows, views)
    number = len(rows) // batch.length  # of rows per sample
    shape = (number, batch.length) if views else (1, batch.length, number)
    parts = rows.reshape(*shape, *rows.shape[1:])[:, : len(batch.places)]
    parts = parts.long() if rows.dtype == torch.bool else parts
    whole = parts.new_zeros(parts.shape[0], sum(batch.of_ranks), *parts.shape[2:])  # all but this rank's are 0
    whole = whole.index_copy(1, torch.tensor(batch.places, dtype=torch.int64, device=rows.device), parts)
    return _SumOverRanks.apply(whole, batch.weight).reshape(-1, *rows.shape[1:]).to(rows.dtype)


def _batch_of_rows(rows: torch.Tensor, views: bool) -> Batch:
    """Return the batch in use to which rows belong: it has as many samples, or divides them."""
    if rows.dim() == 0:
        text = "a number without rows is to be gathered from all ranks; leave rd.loss.batch_rows out around it where"
        raise RuntimeError(f"{text} all ranks have the same, and gather the rows that it is computed from where not")
    batches = set(batches_in_use.values())
    fitting = {batch for batch in batches if len(rows) == batch.length and not views}
    fitting = fitting or {batch for batch in batches if len(rows) % batch.length == 0}
    if len(fitting) == 1:
        return fitting.pop()
    lengths = " and ".join(sorted(f"{batch.length} samples" for batch in batches))
    raise RuntimeError(
        f"{len(rows)} rows are to be gathered from all ranks, and the batches in use have {lengths} on this rank: "
        "which rows belong to which sample cannot be told; every sample needs as many rows"
    )


class _CriterionOfRanks(nn.Module):
    """A criterion over the batch of all ranks. Attributes are those of `criterion`, which stays as it is."""

    def __init__(self, criterion: Callable[..., Any]) -> None:
        super().__init__()
        self.criterion = criterion

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name == "criterion":
                raise
            return getattr(self.criterion, name)


def whole_batch_loss(criterion: Callable[..., Any]) -> Any:
    """Return `criterion` computed on every rank over the samples of all of them, for one that cannot be taken apart.

    Every argument with an entry per sample is gathered, with gradients, which takes the memory of the whole batch's
    outputs; `batch_rows` is for single ones. Collective: every rank, in training.
    """
    return WholeBatch(criterion)


class WholeBatch(_CriterionOfRanks):
    """See `whole_batch_loss`."""

    def forward(self, *inputs: Any, **options: Any) -> Any:
        tensors = [value for value in (*inputs, *options.values()) if isinstance(value, torch.Tensor) and value.dim()]
        if not _is_of_all_ranks() or not any(tensor.requires_grad for tensor in tensors):
            return self.criterion(*inputs, **options)
        length = len(tensors[0])

        def whole(value: Any) -> Any:
            has_rows = isinstance(value, torch.Tensor) and value.dim() > 0 and len(value) == length
            return batch_rows(value) if has_rows else value

        return self.criterion(*map(whole, inputs), **{name: whole(value) for name, value in options.items()})


OF_CLASSES = {"CrossEntropyLoss", "NLLLoss", "cross_entropy", "nll_loss"}  # others divide by the number of elements
OF_ELEMENTS = {
    "MSELoss", "L1Loss", "SmoothL1Loss", "HuberLoss", "BCELoss", "BCEWithLogitsLoss", "mse_loss", "l1_loss",
    "smooth_l1_loss", "huber_loss", "binary_cross_entropy", "binary_cross_entropy_with_logits",
}  # fmt: skip


def distribute_criterion(criterion: Callable[..., torch.Tensor]) -> Any:
    """Return a loss over the batch of all ranks; outside a group, `criterion` itself.

    `criterion`: a loss of torch with reduction="mean" that compares an output and a target by class (nn.NLLLoss) or
    number by number (nn.MSELoss), its function or a partial of that; another one is returned as it is. The mean over
    ranks of the values is that loss, and so are the gradients that DDP averages. It may be built before
    setup_distributed. Collective: every rank, in training.
    """
    is_one_of_several = is_distributed() or read_environment(os.environ).world_size > 1
    return WholeBatchLoss(criterion) if is_one_of_several and _can_count(criterion) else criterion


def _can_count(loss: Any) -> bool:
    if isinstance(loss, partial):
        return _can_count(loss.func) and not loss.args and _takes_mean(loss.keywords)
    return _name_of(loss) in OF_CLASSES | OF_ELEMENTS and _takes_mean(vars(getattr(loss, "__self__", loss)))


def _takes_mean(options: dict[str, Any]) -> bool:
    return options.get("reduction", "mean") == "mean" and False not in map(options.get, ("size_average", "reduce"))


def _name_of(criterion: Any) -> str:
    run = criterion if inspect.isroutine(criterion) else getattr(type(criterion), "forward", _name_of)  # of a base
    is_of_torch = str(run.__module__).startswith("torch.nn.") or inspect.isfunction(criterion)
    return str(run.__qualname__).removesuffix(".forward").rpartition(".")[2] if is_of_torch else ""


class WholeBatchLoss(_CriterionOfRanks):
    """See `distribute_criterion`: the loss summed over this rank's batch, divided by what counts on all ranks."""

    def forward(self, output: torch.Tensor, target: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        if not _is_of_all_ranks() or not output.requires_grad or not _takes_mean(kwargs):
            return self.criterion(output, target, *args, **kwargs)
        criterion: Any = self.criterion
        if isinstance(criterion, partial):
            criterion, kwargs = criterion.func, {**criterion.keywords, **kwargs}
        summed: Any = copy.copy(getattr(criterion, "__self__", criterion))  # of super().forward, the object
        if isinstance(summed, nn.Module):
            summed.reduction = "sum"  # type: ignore[assignment]
            options = {key: getattr(summed, key) for key in ("weight", "ignore_index") if hasattr(summed, key)}
            total = getattr(criterion, "__func__", type(summed).__call__)(summed, output, target, *args, **kwargs)
        else:
            names = list(inspect.signature(getattr(nn.functional, criterion.__name__)).parameters)[2:]
            options = {**dict(zip(names, args)), **kwargs, "reduction": "sum"}
            total = criterion(output, target, **{k: options[k] for k in options if k not in ("size_average", "reduce")})
        if _name_of(criterion) in OF_CLASSES:
            count = _classes_that_count(output, target, options.get("weight"), options.get("ignore_index", -100))
        else:
            count = torch.broadcast_shapes(output.shape, target.shape).numel()
        count = torch.as_tensor(count, dtype=torch.float64).to(output.device)
        return sum_loss(without_repeated(total)) / batch_count(count)


def _classes_that_count(output: torch.Tensor, target: torch.Tensor, weight: Any, ignore_index: int) -> Any:
    """Return by what the mean over a batch divides: the number of valid labels, or the weights of their classes."""
    if target.is_floating_point():  # probabilities of classes: each sample, or pixel, counts
        return target.numel() / output.shape[min(1, output.dim() - 1)]
    valid = target[target != ignore_index]
    return valid.numel() if weight is None else weight.to(torch.float64)[valid].sum()


# ----------------------------------------------------------------------------------------------------------------------
# See through the wrappers that parallel training puts around a model: the module itself, and names without prefix.


# What wrappers put before parameter names: DDP and DataParallel, torch.compile, FSDP1.
WRAPPER_PREFIXES = ("module.", "_orig_mod.", "_fsdp_wrapped_module.")


def unwrap_model(model: nn.Module) -> nn.Module:
    """Return the user's own module inside DDP, DataParallel, DeepSpeed and torch.compile, in whatever order."""
    while True:
        if isinstance(model, (DistributedDataParallel, DataParallel)) or getattr(type(model), "is_transparent", False):
            model = model._modules["module"]  # type: ignore[assignment]
        elif "_orig_mod" in model._modules:
            model = model._modules["_orig_mod"]  # type: ignore[assignment]
        else:
            return model


def all_named_parameters(module: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Return all parameters with their names, also of a module whose own `named_parameters()` lists a part of them."""
    return nn.Module.named_parameters(module)


def all_parameters(module: nn.Module) -> Iterator[nn.Parameter]:
    """Return all parameters, also of a module whose own `parameters()` lists a part of them."""
    return (parameter for _, parameter in all_named_parameters(module))


class ModuleAttributes(nn.Module):
    """A wrapper, `module` inside, that has the attributes of the user's own module."""

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if "module" not in self.__dict__.get("_modules", {}):
                raise
            return getattr(unwrap_model(self), name)

    def __repr__(self) -> str:
        return repr(unwrap_model(self))


def strip_wrapper_prefixes(state_dict: Mapping[str, Any]) -> dict[str, Any]:
    """Return `state_dict` with the prefixes of wrappers removed from its keys, however many there are."""
    state = dict(state_dict)
    while state:
        prefix = next((p for p in WRAPPER_PREFIXES if all(key.startswith(p) for key in state)), None)
        if prefix is None:
            break
        state = {key[len(prefix) :]: value for key, value in state.items()}
    return state


def reduced_as(module: nn.Module, protocol: Any) -> Any:
    """Return what `__reduce_ex__` of another object returns to be `module` in a file."""
    reduced: Any = module.__reduce_ex__(protocol)
    function, arguments, *state = reduced
    if function is copyreg.__newobj__:  # type: ignore[attr-defined]  # pickle takes it for the object's own class only
        function = arguments[0].__new__
    return function, arguments, *state


# ----------------------------------------------------------------------------------------------------------------------
# A 64-bit hash of a tensor's bits, the same on every device.


CHUNK = 1 << 18  # one pseudo-random vector of this length serves tensors of any size
_GOLDEN_RATIO = 0x9E3779B97F4A7C15 - (1 << 64)
_FIRST_MULTIPLIER = 0xBF58476D1CE4E5B9 - (1 << 64)
_SECOND_MULTIPLIER = 0x94D049BB133111EB - (1 << 64)


def bit_hash(tensor: torch.Tensor) -> int:
    """Return the sum modulo 2**64 of the tensor's words times odd numbers, which any one changed word changes."""
    return int(bit_hash_later(tensor)) % 2**64


def bit_hash_later(tensor: torch.Tensor) -> torch.Tensor:
    """Return the hash as an int64 tensor without dimensions on the tensor's device, which nothing has waited for."""
    flat = tensor.detach().contiguous().reshape(-1)
    flat = flat.view(torch.uint8) if flat.dtype != torch.bool else flat.to(torch.uint8)
    missing = -flat.numel() % 8
    if missing or flat.storage_offset() % 8:
        flat = torch.cat([flat, flat.new_zeros(missing)])
    return weighted_sum(flat.view(torch.int64), _odd_numbers(str(tensor.device))) + tensor.numel()


def weighted_sum(flat: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Return the sum of element (r, c) of `flat`, seen as rows of CHUNK elements, times weights[r] * weights[c]."""
    num_rows = flat.numel() // CHUNK
    rows, tail = flat[: num_rows * CHUNK].view(num_rows, CHUNK), flat[num_rows * CHUNK :]
    if flat.is_cuda and flat.dtype == torch.int64:  # cuBLAS multiplies no integers
        per_row, total = (rows * weights).sum(1), (tail * weights[: len(tail)]).sum()
        return (per_row * weights[:num_rows]).sum() + total * weights[num_rows]
    total = torch.dot(tail, weights[: len(tail)])
    return torch.dot(torch.mv(rows, weights), weights[:num_rows]) + total * weights[num_rows]


@lru_cache(maxsize=64)
def _odd_numbers(device: str) -> torch.Tensor:
    """Return pseudo-random odd numbers (the finalizer of splitmix64): no relation between them lets small words cancel.

    With numbers that grow evenly, two rows of token ids often have the same sum.
    """
    numbers = torch.arange(1, CHUNK + 1, dtype=torch.int64, device=device) * _GOLDEN_RATIO
    for shift, multiplier in ((30, _FIRST_MULTIPLIER), (27, _SECOND_MULTIPLIER)):
        numbers = (numbers ^ _shifted(numbers, shift)) * multiplier  # wraps around
    return (numbers ^ _shifted(numbers, 31)) | 1


def _shifted(numbers: torch.Tensor, bits: int) -> torch.Tensor:
    return (numbers >> bits) & ((1 << (64 - bits)) - 1)  # torch's own shift repeats the sign


# ----------------------------------------------------------------------------------------------------------------------
# The mean over ranks of gradients: which of them DDP leaves to be averaged at the end of a backward pass, and when.


FIRST_PASSES = 20  # that are looked at: a part that one pass in ten leaves out is then hardly missed
FOREVER = -1
MOST_FREEZINGS = 2  # changes of what is trainable, after which it is taken to change all the time
BYTES_AT_ONCE = 25 * 2**20  # as in DDP's buckets
DEEPEST = 6  # levels of containers in a model's output that are looked at

_sync_numbers = count()
_reached: dict[int, dict[int, GradientSync]] = {}  # by backward pass: the models it has reached, by their number


class GradientSync:
    """Averages after each backward pass of one model what DDP has not averaged during it.

    DDP waits for a gradient of every parameter. Over the first passes the ranks look which parameters get one, and
    average at the end. If every rank used the same ones in each pass, DDP reduces these from then on, a rank that lacks
    one after all hands in zeros, and the ranks look at the others after each pass. Anything else, and whenever that
    changes: everything is averaged at the end, of the outermost pass, for several models in the order of their
    creation. `torch.autograd.grad`, which leaves no gradients, has none.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], num_passes: int) -> None:
        self.parameters = list(parameters)
        self.unused: set[int] = set()  # numbers of parameters that no rank has used, which DDP leaves out
        self.by_ddp: list[int] = []  # numbers of the parameters that DDP reduces, in its order
        self.reducer: Any = None  # DDP's
        self.group: Any = None
        self.compare: Callable[[bool], bool] = lambda has_missed: False
        self.is_wanted = False  # whether gradients are to be the same on all ranks after the next pass
        self.is_armed = False  # whether DDP reduces them in it
        self._number = next(_sync_numbers)
        self._is_open = self._has_missed = False
        self._touched: set[int] = set()
        self._marked: list[nn.Parameter] = []
        self._by_any: set[int] = set()  # numbers of what any rank, and all ranks, used in the passes that are looked at
        self._by_all: set[int] = set()
        self._nodes: dict[int, Any] = {}  # that accumulate the gradients
        self._first_passes, self._num_freezings = num_passes, 0
        # A leaf: its hook runs in backward(), but not in autograd.grad, which stops at the inputs that it was given.
        self._anchor = torch.zeros((), requires_grad=True)
        self._anchor.register_hook(_weak_hook(self, GradientSync._open))
        self._trainable = self._now_trainable()
        self._look(num_passes)

    @property
    def is_looking(self) -> bool:
        return self._passes_left != 0

    def leave_to_ddp(self) -> None:
        self._first_passes = self._passes_left = 0

    def look_again(self) -> None:
        """Look at parameters that were moved, or given another type: other nodes accumulate their gradients now."""
        self._nodes = {}
        self._look(self._first_passes)

    def follow_freezing(self) -> None:
        """Look again where other parameters are trainable than before."""
        if self._trainable != self._now_trainable():
            self._trainable = self._now_trainable()
            self._num_freezings += 1
            has_enough = self._first_passes and self._num_freezings > MOST_FREEZINGS
            self._look(FOREVER if has_enough else self._first_passes)

    def wanted_of_ddp(self) -> list[int]:
        return sorted(self._trainable - self.unused)

    def watch(self, output: Any, weight: float) -> Any:
        """Return a model's output with its tensors watched; their gradients get the factor `weight`."""
        if not in_backward():  # what is open was left by passes that ended in an error
            _reached.clear()
            self._is_open = False
        return scale_gradients(output, weight, self._anchor)

    @torch.no_grad()
    def complete(self) -> None:
        """Hand in -0.0 for what DDP's reduction lacks on this rank: only sums of nothing else are -0.0 again."""
        places = [place for place, number in enumerate(self.by_ddp) if number not in self._touched]
        if not self.is_armed or not places:
            return
        self._has_missed = True
        for parameter in (self.parameters[self.by_ddp[place]] for place in places):
            if parameter.grad is None:
                parameter.grad = torch.full_like(parameter, -0.0, requires_grad=False)
                self._marked.append(parameter)
        for place in places:
            self.reducer._autograd_hook(place)

    @torch.no_grad()
    def finish(self) -> None:
        """Average what DDP did not, and let the ranks agree on what they use. Collective: every rank."""
        is_armed = self.is_armed
        self._is_open = self.is_wanted = self.is_armed = False
        for parameter in self._marked:
            if bool((parameter.grad.signbit() & (parameter.grad == 0)).all()):  # type: ignore[union-attr, operator]
                parameter.grad = None
        self._marked = []
        numbers = sorted(self.unused if is_armed else self._trainable)
        by_any, by_all = average_gradients({n: self.parameters[n] for n in numbers}, self._touched, self.group)
        if self.is_looking and not is_armed:
            self._learn(by_any, by_all)
        if self.compare(self._has_missed) or (is_armed and by_any):
            self._has_missed = False
            self._look(FOREVER)

    def _look(self, num_passes: int) -> None:
        self._passes_left = num_passes
        self.unused, self._by_any, self._by_all = set(), set(), set(self._trainable)
        for number in self._trainable - set(self._nodes):
            with torch.enable_grad():
                view: Any = self.parameters[number].view_as(self.parameters[number])
            self._nodes[number] = view.grad_fn.next_functions[0][0]
            self._nodes[number].register_prehook(_weak_hook(self, GradientSync._reach, number))

    def _learn(self, by_any: set[int], by_all: set[int]) -> None:
        """Note what the ranks used in a pass; after the last one decide whether DDP can take over."""
        self._by_any |= by_any
        self._by_all &= by_all
        self._passes_left -= 1
        if self._passes_left == 0:
            # DDP of torch 2.14 over gloo leaves what follows a sparse gradient unreduced.
            is_sparse = any(_is_sparse(self.parameters[number]) for number in by_any)
            if is_sparse or not self._by_any or self._by_any != self._by_all:
                self._passes_left = FOREVER
            else:
                self.unused = self._trainable - self._by_any

    def _now_trainable(self) -> set[int]:
        return {number for number, parameter in enumerate(self.parameters) if parameter.requires_grad}

    def _reach(self, number: int, gradients: Any) -> None:
        """Note that a parameter is about to get its gradient; None is what a function returned None for."""
        if self.is_wanted:
            self._open()
        if self._is_open and (gradients[0] is not None or self.is_armed):
            self._touched.add(number)

    def _open(self, gradient: Any = None) -> None:
        if self._is_open:
            return
        self._is_open, self._touched = True, set()
        task = torch._C._current_graph_task_id()
        if task not in _reached:
            _reached[task] = {}
            _queue_callback(lambda: _queue_callback(lambda: _complete(task)))  # after what DDP has queued by then
        _reached[task][self._number] = self


def _weak_hook(owner: Any, method: Callable[..., None], *args: Any) -> Callable[[Any], None]:
    """Return a hook that calls `method(owner, *args, gradient)` and does not keep the owner alive."""
    reference = weakref.ref(owner)

    def hook(gradient: Any) -> None:
        living = reference()
        if living is not None:
            method(living, *args, gradient)

    return hook


def in_backward() -> bool:
    return torch._C._current_graph_task_id() != -1


def _queue_callback(function: Callable[[], Any]) -> None:
    """Let the backward pass that is running call `function` at its end, after what is queued already."""
    torch.autograd.Variable._execution_engine.queue_callback(function)  # type: ignore[attr-defined]


def _complete(task: int) -> None:
    syncs = [sync for _, sync in sorted(_reached.pop(task, {}).items())]
    for sync in syncs:
        sync.complete()
    _queue_callback(lambda: [sync.finish() for sync in syncs])  # after what DDP has queued to end its reductions


def average_gradients(
    parameters: Mapping[int, nn.Parameter], touched: set[int], group: Any = None
) -> tuple[set[int], set[int]]:
    """Give every parameter the mean over ranks of its gradient; return what any rank, and all ranks, have `touched`.

    A rank without a gradient counts as zeros; a parameter without one on every rank keeps None, as in one process.
    """
    if not parameters:
        return set(), set()
    kinds = [0 if parameter.grad is None else 1 + _is_sparse(parameter) for parameter in parameters.values()]
    facts = [*kinds, *(int(number in touched) for number in parameters)]
    packed = torch.tensor([facts, [-fact for fact in facts]])
    packed = packed.cuda() if dist.get_backend(group) == "nccl" else packed
    dist.all_reduce(packed, dist.ReduceOp.MAX, group=group)
    highest, lowest = packed.tolist()  # the lowest of the ranks, negative
    number_of_ranks, dense = dist.get_world_size(group), []
    for parameter, kind in zip(parameters.values(), highest):
        if kind == 2:
            no_rows = torch.empty((1, 0), dtype=torch.int64, device=parameter.device), parameter.detach()[:0]
            own = torch.sparse_coo_tensor(*no_rows, parameter.shape) if parameter.grad is None else parameter.grad
            gradient = (own if own.is_sparse else own.to_sparse(1)).div(number_of_ranks).coalesce()
            dist.all_reduce(gradient, group=group)
            parameter.grad = gradient
        elif kind == 1:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter, requires_grad=False)
            dense.append(parameter.grad)
    for gradients in _take_tensors(dense, BYTES_AT_ONCE):
        flat = _flatten_dense_tensors(gradients).div_(number_of_ranks)
        dist.all_reduce(flat, group=group)
        for gradient, part in zip(gradients, _unflatten_dense_tensors(flat, gradients)):
            gradient.copy_(part)
    by_any = {number for number, was_touched in zip(parameters, highest[len(parameters) :]) if was_touched}
    return by_any, {number for number, was_touched in zip(parameters, lowest[len(parameters) :]) if was_touched}


def _is_sparse(parameter: nn.Parameter) -> bool:
    return parameter.grad is not None and parameter.grad.is_sparse


class _ScaledGradient(torch.autograd.Function):
    """The identity, with a factor on the gradient and an edge to `anchor`. What it returns may be changed in place.

    A gradient of the gradient (`create_graph=True`) has no factor of its own: that on the outputs is in the values that
    it is computed from, and that on the inputs, which takes it away from the gradient, is not to take it from there.
    """

    @staticmethod
    def forward(ctx: Any, anchor: torch.Tensor | None, tensor: torch.Tensor, factor: float) -> torch.Tensor:
        ctx.has_anchor, ctx.factor = anchor is not None, factor
        return tensor.detach()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        (gradient,) = gradients
        scaled = gradient if ctx.factor == 1.0 else gradient * ctx.factor
        if scaled.requires_grad and ctx.factor != 1.0:
            scaled = gradient + (scaled - gradient).detach()
        return torch.zeros(()) if ctx.has_anchor else None, scaled, None


def scale_gradients(value: Any, factor: float, anchor: torch.Tensor | None = None) -> Any:
    """Return `value` with a factor on the gradients of all tensors in it; what holds none stays the same object."""
    scaled: dict[int, torch.Tensor] = {}

    def of_tensor(tensor: torch.Tensor) -> torch.Tensor:
        is_made = tensor.requires_grad and (factor != 1.0 or tensor.grad_fn is not None)
        if is_made and id(tensor) not in scaled:  # each for itself: a loss may leave outputs out
            scaled[id(tensor)] = _ScaledGradient.apply(anchor, tensor, factor)
        return scaled.get(id(tensor), tensor)

    return _replace_tensors(value, of_tensor, DEEPEST)


def tensors_in(value: Any) -> list[torch.Tensor]:
    """Return the tensors of a model's output."""
    found: list[torch.Tensor] = []

    def note(tensor: torch.Tensor) -> torch.Tensor:
        found.append(tensor)
        return tensor

    _replace_tensors(value, note, DEEPEST)
    return found


def _replace_tensors(value: Any, of_tensor: Callable[[torch.Tensor], torch.Tensor], depth: int) -> Any:
    """Return `value` with other tensors, in containers of its own types: also in dataclasses and distributions."""
    if isinstance(value, torch.Tensor):
        return of_tensor(value)
    entries: Any = {}
    if isinstance(value, MutableMapping):
        entries = value
    elif isinstance(value, (list, tuple)):
        entries = dict(enumerate(value))
    elif hasattr(value, "__dict__") and not isinstance(value, (type, nn.Module)) and not callable(value):
        entries = vars(value)
    changed = {name: _replace_tensors(entry, of_tensor, depth - 1) for name, entry in entries.items() if depth}
    if all(entry is entries[name] for name, entry in changed.items()):
        return value
    if isinstance(value, (list, tuple)):
        return type(value)(*changed.values()) if hasattr(value, "_fields") else type(value)(changed.values())
    copied = copy.copy(value)
    target = copied if isinstance(value, MutableMapping) else vars(copied)
    for name, entry in changed.items():  # the outputs of transformers take entries, and refuse update()
        target[name] = entry
    return copied


# ----------------------------------------------------------------------------------------------------------------------
# BatchNorm over the global batch on any backend; torch's nn.SyncBatchNorm refuses CPU tensors.


EXTENDED_BY = ("timm.",)  # libraries whose BatchNorm layers do more: an activation of each entry


def convert_sync_batchnorm(model: nn.Module) -> nn.Module:
    """Return `model` with every BatchNorm layer synchronised over ranks; outside a group, `model` as it is.

    A layer stays an instance of its class, as in `isinstance(layer, nn.BatchNorm2d)`, and gets the forward of torch's
    nn.SyncBatchNorm on CUDA, of `CPUSyncBatchNorm` on the CPU. Call it on every rank before wrapping.
    timm's layers, which add an activation to BatchNorm, run their own forward. Raises ValueError for another layer with
    a forward of its own, and for one of a TorchScript model, which nothing would synchronise. None comes back as None.
    """
    if model is None or not is_distributed():
        return model
    for name, part in model.named_modules():
        if isinstance(part, torch.jit.ScriptModule) and "BatchNorm" in str(getattr(part, "original_name", "")):
            raise ValueError(
                f"{name or 'the model'} is BatchNorm in TorchScript, which cannot be synchronised; script the model "
                "after the training, or let every rank keep its own statistics: RETROFIT_BATCHNORM=local"
            )
    layers = {name: layer for name, layer in model.named_modules() if isinstance(layer, _BatchNorm)}
    forwards = (_BatchNorm.forward, nn.SyncBatchNorm.forward, CPUSyncBatchNorm.forward)
    for name, layer in layers.items():
        if _adds_activation(layer):
            continue
        if type(layer).forward not in forwards or "forward" in layer.__dict__:
            raise ValueError(
                f"{name or 'the model'} is a BatchNorm layer with a forward of its own ({type(layer).__qualname__}), "
                "which a synchronised layer would not run; RETROFIT_BATCHNORM=local, or "
                "rd.distribute_model(model, sync_batchnorm=False), leaves every rank its own statistics"
            )
    for layer in layers.values():
        if isinstance(layer, _Synchronised):
            continue
        if _adds_activation(layer):
            layer.__class__ = _class_with(SyncThroughForward, type(layer))
        elif torch.cuda.is_available():
            layer.__dict__.setdefault("process_group", None)
            layer.__class__ = _class_with(_CUDASyncBatchNorm, type(layer))
        else:
            layer.__class__ = _class_with(CPUSyncBatchNorm, type(layer))  # in place: parameters and hooks stay
    return model


def _adds_activation(layer: nn.Module) -> bool:
    is_known = type(layer).__module__.startswith(EXTENDED_BY) and "forward" not in layer.__dict__
    return isinstance(layer, SyncThroughForward) or is_known


_classes: dict[tuple[type, type], type[_BatchNorm]] = {}


def _class_with(kind: type[_Synchronised], replaced: type[_BatchNorm]) -> type[_BatchNorm]:
    """Return the class derived from both, with the forward of `kind`."""
    if (kind, replaced) not in _classes:
        name = f"Synchronised{replaced.__name__}"
        _classes[kind, replaced] = type(name, (kind, replaced), {"replaced": replaced})
    return _classes[kind, replaced]


class _Synchronised(_BatchNorm):
    """A BatchNorm layer that waits for the other ranks.

    In a file it is the layer that it replaced, which needs nothing of the runtime to be read; a copy is like itself.
    """

    replaced: type[nn.Module] = nn.BatchNorm2d

    def __reduce_ex__(self, protocol: Any) -> Any:
        plain = self.replaced.__new__(self.replaced)
        plain.__dict__.update(self.__dict__)
        return reduced_as(plain, protocol)

    def __deepcopy__(self, memo: dict[int, Any]) -> _Synchronised:
        copied = memo[id(self)] = type(self).__new__(type(self))
        copied.__dict__.update(copy.deepcopy(self.__dict__, memo))
        return copied


class _CUDASyncBatchNorm(_Synchronised, nn.SyncBatchNorm):
    """torch's own synchronised layer."""


class SyncThroughForward(_Synchronised):
    """A layer whose forward is BatchNorm and then something for each entry, over the batches of all ranks.

    Collective: every rank, in training mode.
    """

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        if not self.training or not is_distributed():
            return super().forward(input)
        own = nn.functional.batch_norm
        nn.functional.batch_norm = _batch_norm_of_ranks
        try:
            return super().forward(input)
        finally:
            nn.functional.batch_norm = own


class CPUSyncBatchNorm(_Synchronised):
    """BatchNorm of (N, C, ...) over the batches of all ranks. Collective: every rank, in training mode."""

    def _check_input_dim(self, input: torch.Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(f"expected (N, C, ...), got {input.dim()} dimension(s)")

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        self._check_input_dim(input)
        if not self.training or not is_distributed():
            return _BatchNorm.forward(self, input)
        if not self.track_running_stats or self.running_mean is None or self.running_var is None:
            return sync_batch_norm(input, None, None, self.weight, self.bias, 0.0, self.eps)
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        momentum = 1.0 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        return sync_batch_norm(input, self.running_mean, self.running_var, self.weight, self.bias, momentum, self.eps)


class SumOverRanks(torch.autograd.Function):
    """Sum over ranks, differentiable as often as wanted. Collective: every rank, in forward and in backward."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor) -> torch.Tensor:
        total = tensor.detach().clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=group_for(total))
        return total

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return SumOverRanks.apply(gradient)


def sync_batch_norm(
    input: torch.Tensor,
    running_mean: torch.Tensor | None,
    running_var: torch.Tensor | None,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    momentum: float,
    eps: float,
    sum_over_ranks: type[SumOverRanks] = SumOverRanks,
) -> torch.Tensor:
    """Return the training output of functional.batch_norm for the batches (N, C, ...) of all ranks together.

    Collective: every rank, in forward and in backward. Statistics are float32 (float64 for float64 input).
    """
    x = input if input.dtype == torch.float64 else input.float()
    dims = [0, *range(2, x.dim())]
    shape = [1, -1] + [1] * (x.dim() - 2)
    local_count = torch.full((1,), x.numel() / x.shape[1], dtype=x.dtype, device=x.device)
    sums = sum_over_ranks.apply(torch.cat([x.sum(dims), local_count]))
    count = sums[-1]
    mean = sums[:-1] / count
    centered = x - mean.view(shape)
    # Two passes: E[x^2] - E[x]^2 cancels badly in float32.
    variance = sum_over_ranks.apply((centered * centered).sum(dims)) / count
    output = centered * torch.rsqrt(variance + eps).view(shape)
    if weight is not None:
        output = output * weight.view(shape)
    if bias is not None:
        output = output + bias.view(shape)
    if running_mean is not None and running_var is not None:
        total = float(count.detach())
        running_mean.lerp_(mean.detach().to(running_mean.dtype), momentum)
        unbiased = variance.detach() * total / max(total - 1, 1)
        running_var.lerp_(unbiased.to(running_var.dtype), momentum)
    return output.to(input.dtype)


def _batch_norm_of_ranks(
    input: torch.Tensor,
    running_mean: torch.Tensor | None,
    running_var: torch.Tensor | None,
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> torch.Tensor:
    """Return what functional.batch_norm gives for the batches of all ranks."""
    if not training:
        return torch.batch_norm(input, weight, bias, running_mean, running_var, False, momentum, eps, False)
    return sync_batch_norm(input, running_mean, running_var, weight, bias, momentum, eps)


@contextmanager
def own_statistics(module: nn.Module) -> Iterator[None]:
    """Let synchronised BatchNorm layers in training mode use this rank's batch; in evaluation mode they do not wait."""
    waiting = waiting_layers(module)
    for layer in waiting:
        kind = layer.replaced if isinstance(layer, SyncThroughForward) else _BatchNorm
        layer.forward = partial(kind.forward, layer)  # type: ignore[method-assign,arg-type]
    try:
        yield
    finally:
        for layer in waiting:
            del layer.forward


def waiting_layers(module: nn.Module, always: bool = False) -> list[nn.Module]:
    """Return the BatchNorm layers whose forward waits for the other ranks; `always`: or would in training mode."""
    kinds = (nn.SyncBatchNorm, CPUSyncBatchNorm, SyncThroughForward)
    return [layer for layer in module.modules() if isinstance(layer, kinds) and (layer.training or always)]


# ----------------------------------------------------------------------------------------------------------------------
# Find layers that run in training past the wrapper's forward: their gradients would not be synchronised.


# What other modules add: contexts, made with the model, in which it can run without the other ranks.
running_alone: list[Callable[[nn.Module], AbstractContextManager[Any]]] = []
_forward_depth = 0
_guarded: weakref.WeakSet[nn.Module] = weakref.WeakSet()


def run_alone(function: Callable[..., Any], model: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """Return `function(model, ...)` for one that runs or compiles the model itself: a summary, a graph, an export.

    This rank may do so alone: `function` gets your own module, no layer of it waits for other ranks, nothing is trained
    by it, rank 0 prints. Synchronised BatchNorm uses its running statistics meanwhile. Outside a group: the plain call.
    """
    if not is_distributed():
        return function(model, *args, **kwargs)
    module = unwrap_model(model)
    layers = [(layer, type(layer), layer.training) for layer in waiting_layers(module, always=True)]
    hooks = [(part._forward_hooks, key) for part in module.modules() for key in part._forward_hooks]
    guards = [(held, key, held.pop(key)) for held, key in hooks if isinstance(held[key], RefuseBypass)]
    for layer, kind, _ in layers:  # of which torch.jit.script reads the class
        layer.training, layer.__class__ = False, getattr(layer, "replaced", kind)
    try:
        with ExitStack() as stack, open(os.devnull, "w") as nowhere:
            for context in running_alone:
                stack.enter_context(context(module))
            stack.enter_context(running_forward())
            stack.enter_context(redirect_stdout(sys.stdout if is_main_process() else nowhere))
            return function(module, *args, **kwargs)
    finally:
        for layer, kind, is_training in layers:
            layer.training, layer.__class__ = is_training, kind
        for held, key, hook in guards:  # torch.jit.script takes none
            held[key] = hook


@contextmanager
def running_forward() -> Iterator[None]:
    global _forward_depth
    _forward_depth += 1
    try:
        yield
    finally:
        _forward_depth -= 1


def is_running_forward() -> bool:
    return _forward_depth > 0


def unguard(layer: nn.Module) -> None:
    """Let a layer run outside the model's forward, too: what it does is synchronised otherwise."""
    for part in layer.modules():
        _guarded.discard(part)


def guard_layers(module: nn.Module) -> None:
    """Watch the module's outermost layers, in containers too: one that runs outside DDP's forward bypasses it."""
    for child in module.children():
        if isinstance(child, (nn.ModuleList, nn.ModuleDict, nn.Sequential)):
            guard_layers(child)
        if child not in _guarded and not isinstance(child, torch.jit.ScriptModule):  # which takes no hooks
            _guarded.add(child)
            child.register_forward_hook(RefuseBypass())


class RefuseBypass:
    """A hook after a layer's forward: where that is not part of the model's, training it raises RuntimeError.

    The error comes with the backward pass that reaches the layer: text that is generated with gradients switched on
    trains nothing. A layer that returns no tensor in sight raises at once.
    """

    def __call__(self, layer: nn.Module, inputs: Any, output: Any) -> None:
        is_inside = _forward_depth or in_backward()  # in backward: recomputation by activation checkpointing
        if is_inside or not layer.training or not torch.is_grad_enabled() or layer not in _guarded:
            return
        if not any(parameter.requires_grad for parameter in layer.parameters()):
            return
        frame = called_from(sys._getframe(1))[1]
        refuse = _Refusal(type(layer).__name__, f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}")
        tensors = tensors_in(output)
        if not tensors:
            refuse()
        for tensor in tensors:
            if tensor.requires_grad:
                tensor.register_hook(refuse)

    def __reduce__(self) -> Any:
        """In a file, and in a copy, it is a hook that does nothing and needs nothing of the runtime."""
        return getattr, (nullcontext(), "__exit__")  # which takes any arguments and returns None


class _Refusal:
    """A hook on a gradient that must not come."""

    def __init__(self, kind: str, place: str) -> None:
        self.kind, self.place = kind, place

    def __call__(self, gradient: torch.Tensor | None = None) -> None:
        raise RuntimeError(
            f"{self.place}: {self.kind} of a DDP model ran in training outside model(...), and its gradients would not "
            "be synchronised over ranks; name the method or the layer that is called: rd.distribute_model(model, "
            "methods=['encode']), or, for evaluation, call it under torch.no_grad() or after model.eval()"
        )


# ----------------------------------------------------------------------------------------------------------------------
# Stop the training when the ranks' parameters are no longer the same.


COMPARED_PASSES = (2, 3, 10, 20, 50, 100, 200)  # in which parameters are compared by default, then every PERIOD
PERIOD = 500
MOST_POSTPONED = 8  # passes without an optimizer step, after which the parameters are compared as they are
SWITCHED_OFF = "RETROFIT_CONSISTENCY=off switches this check off"

_checks: weakref.WeakSet[ConsistencyCheck] = weakref.WeakSet()
_alone: dict[str, int] = {}  # hashes of what optimizers change that is in no wrapped model, by a description
_left_out: dict[str, int] = {}  # the same of optimizers that change a wrapped model as well


class ConsistencyCheck:
    """Compares the parameters of a module that every rank has a whole copy of, all but those with an id in `own`.

    RETROFIT_CONSISTENCY says when: off; first, in COMPARED_PASSES and then every PERIOD; always, in every pass.
    Collective: every rank of `group`, to construct it. Raises ValueError where the ranks' choices differ.
    """

    def __init__(self, module: nn.Module, own: set[int], group: Any) -> None:
        self.module, self._own, self._group, self._choice = module, own, group, read_twin(CONSISTENCY)
        self._num_passes = self._num_postponed = 0
        self.is_due = False
        self._fresh: torch.Tensor | None = None  # the hashes after the last optimizer step
        if len(set(self._gather(self._choice))) > 1:
            raise ValueError(
                f"RETROFIT_CONSISTENCY is {self._choice!r} on rank {get_rank()} and another on other ranks; set it to "
                "the same value on all"
            )
        if self._choice == "off" or not self._parameters():
            self._choice = "off"
            return
        _checks.add(self)
        _follow_optimizers()

    def end_of_pass(self, has_missed: bool) -> bool:
        """Count a backward pass, compare where that is due, and return whether any rank `has_missed` gradients then.

        Collective: every rank. Raises RuntimeError on all of them when a parameter differs.
        """
        if self._choice == "off":
            return False
        self._num_passes += 1
        any_missed = self.is_due and self._compare(has_missed)
        following = self._num_passes + 1
        self.is_due |= self._choice == "always" or following in COMPARED_PASSES or following % PERIOD == 0
        return any_missed

    def optimizer_stepped(self, ids: set[int]) -> bool:
        """Take the hashes that are due, after a step on parameters with these ids; return whether any is compared."""
        if ids.isdisjoint(id(parameter) for parameter in self._parameters().values()):
            return False
        if self.is_due:
            self._fresh = self._hashes()
        return True

    def _parameters(self) -> dict[str, nn.Parameter]:
        named = all_named_parameters(self.module)
        return {name: p for name, p in named if id(p) not in self._own and not hasattr(p, "device_mesh")}

    def _hashes(self) -> torch.Tensor:
        hashes = [bit_hash_later(parameter) for parameter in self._parameters().values()]
        return torch.stack([value.to(hashes[0].device) for value in hashes])

    def _compare(self, has_missed: bool) -> bool:
        if self._fresh is None and self._num_postponed == MOST_POSTPONED:
            self._fresh = self._hashes()
        own = None if self._fresh is None else self._fresh.tolist()
        of_ranks = self._gather((own, has_missed, _alone, _left_out, take_shown()))
        hashes, missed, alone, left_out, shown = zip(*of_ranks)
        say_where_ranks_differ(list(shown))
        if get_rank() == 0 and any(of_rank != _alone for of_rank in alone):
            _warn_of_alone("; ".join(_alone) or "an optimizer that rank 0 does not step")
        if any(of_rank != left_out[0] for of_rank in left_out):
            names = sorted(set().union(*left_out))
            raise RuntimeError(
                f"the ranks have different parameters, which are in no wrapped model: {'; '.join(names)}; put their "
                f"model through rd.distribute_model, or a parameter through rd.model.distribute_parameter; "
                f"{SWITCHED_OFF}"
            )
        if not any(hashes):  # gradients are being accumulated, or a GradScaler skips steps: on all ranks
            self._num_postponed += 1
            return any(missed)
        if any(of_rank != hashes[0] for of_rank in hashes):
            self._refuse_differing()
        self.is_due, self._fresh, self._num_postponed = False, None, 0
        return any(missed)

    def _refuse_differing(self) -> None:
        """Tell all ranks what differs. A rank that took no step may still have the same parameters, and so may NaNs."""
        parameters = self._parameters()
        hashes = (self._hashes() if self._fresh is None else self._fresh).tolist()
        for number, parameter in enumerate(parameters.values()):
            if parameter.isnan().any():  # of which there are several, which mean the same
                hashes[number] = bit_hash(parameter.detach().nan_to_num(nan=-0.75))
        of_ranks = self._gather((hashes, self._fresh is not None))
        equal = [len(set(values)) == 1 for values in zip(*(of_rank for of_rank, _ in of_ranks))]
        if all(equal):
            return
        name = list(parameters)[equal.index(False)]
        norms = ", ".join(f"{norm:.9g}" for norm in self._gather(float(parameters[name].detach().double().norm())))
        idle = ", ".join(str(rank) for rank, (_, has_stepped) in enumerate(of_ranks) if not has_stepped)
        steps = f"; rank {idle} took no optimizer step since the backward pass before" if idle else ""
        raise RuntimeError(
            f"the ranks have different parameters: {name!r} is the first of {equal.count(False)} of {len(parameters)} "
            f"tensors of {type(self.module).__name__} that differ (norms by rank: {norms}), found in backward pass "
            f"{self._num_passes}{steps}; probable causes: an optimizer step, or a change of p.grad or of a parameter, "
            "that depends on this rank's own samples or loss; weights drawn again, or a checkpoint or optimizer state "
            f"loaded, on some ranks only or after wrapping; `retrofit verify` finds the line, {SWITCHED_OFF}"
        )

    def _gather(self, value: Any) -> list[Any]:
        found: list[Any] = [None] * dist.get_world_size(self._group)
        dist.all_gather_object(found, value, group=self._group)
        return found


@cache
def _warn_of_alone(names: str) -> None:
    warnings.warn(
        f"an optimizer steps on parameters that no wrapper synchronises and ranks differ in them: {names}; "
        "put their model through rd.distribute_model, unless each rank is to train its own",
        stacklevel=2,
    )


@cache
def _follow_optimizers() -> None:
    register_optimizer_step_post_hook(_after_step)


@torch.no_grad()
def _after_step(optimizer: Any, args: Any, kwargs: Any) -> None:
    """Take hashes of what an optimizer has changed: of wrapped models, and of what is in none."""
    if not any(check.is_due for check in _checks):
        return
    given = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    is_wrapped = [check.optimizer_stepped({id(parameter) for parameter in given}) for check in list(_checks)]
    # Sharded, or with a hook as `distribute_parameter` sets: synchronised as well.
    known = {id(parameter) for check in _checks for parameter in all_parameters(check.module)}
    known |= {id(parameter) for parameter in given if hasattr(parameter, "device_mesh") or parameter._backward_hooks}
    rest = [parameter for parameter in given if isinstance(parameter, nn.Parameter) and id(parameter) not in known]
    if rest:
        name = f"{type(optimizer).__name__} with {len(rest)} parameter(s), the first of shape {tuple(rest[0].shape)}"
        (_left_out if any(is_wrapped) else _alone)[name] = hash(tuple(map(bit_hash, rest)))


# ----------------------------------------------------------------------------------------------------------------------
# torch's DataParallel in a script that several processes run: each drives one GPU, and the names stay as they were.


MODULE_PREFIX = "module."
KEEPS_PREFIX = "keeps_prefix"  # in the __dict__ of a DDPWrapper that takes the place of a DataParallel


class OneDevice(ModuleAttributes, nn.DataParallel):
    """A DataParallel over the GPU of this process alone, until `distribute_model` takes its place.

    Around a model that is wrapped already it stays: `net` has names of its own, and `DataParallel(net)` those with
    `module.`.
    """

    def __init__(self, module: nn.Module) -> None:
        place, count = read_environment(os.environ), torch.cuda.device_count()
        super().__init__(module, device_ids=[gpu_index(place, count)] if torch.cuda.is_available() else None)

    def load_state_dict(self, state_dict: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        return super().load_state_dict(fitting_keys(self, state_dict), *args, **kwargs)

    def named_parameters(self, prefix: str = "", *args: Any, **kwargs: Any) -> Iterator[tuple[str, nn.Parameter]]:
        return self.module.named_parameters(_below(prefix), *args, **kwargs)

    def named_buffers(self, prefix: str = "", *args: Any, **kwargs: Any) -> Iterator[tuple[str, torch.Tensor]]:
        return self.module.named_buffers(_below(prefix), *args, **kwargs)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """In a file it is a DataParallel, which needs nothing of the runtime to be read."""
        return nn.DataParallel, (self.module,)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return OneDevice(copy.deepcopy(self.module, memo))


def data_parallel(kind: type[nn.DataParallel], module: nn.Module, *args: Any, **options: Any) -> nn.Module:
    """Return `kind(module, ...)`, DataParallel or a class derived from it; of several processes each uses its own GPU.

    Without a launcher it is the script's own DataParallel, over the GPUs that it names. `model.module`, the `module.`
    in the names of a checkpoint and `rd.model.is_data_parallel(model)` are the same in both cases.
    """
    if read_environment(os.environ).world_size == 1:
        return kind(module, *args, **options)
    return OneDevice(module)


def _below(prefix: str) -> str:
    """Return the prefix of the names in `module`."""
    return f"{prefix}.module" if prefix else "module"


def is_data_parallel(model: Any) -> bool:
    """Return whether a model is a DataParallel, or in one of several processes what takes its place."""
    return isinstance(model, nn.DataParallel) or bool(getattr(model, "__dict__", {}).get(KEEPS_PREFIX))


def script_model(model: Any) -> Any:
    """Return the model as the script made it: its DataParallel, or the module inside the runtime's own wrapper."""
    return model if is_data_parallel(model) else unwrap_model(model)


def fitting_keys(model: nn.Module, state_dict: Any) -> Any:
    """Return `state_dict` with the names that `model` has: with `module.` before all of them, or of none.

    For checkpoints that were written with DataParallel and are read without it, or the other way round. What fits as
    well without a change, or is not the state of a model, comes back as it is.
    """
    if not isinstance(state_dict, Mapping) or not all(isinstance(key, str) for key in state_dict):
        return state_dict
    own, bare = set(model.state_dict()), strip_wrapper_prefixes(state_dict)
    choices = (state_dict, bare, {MODULE_PREFIX + key: value for key, value in bare.items()})
    return max(choices, key=lambda choice: len(own & set(choice)))  # the first of those that fit as well


# ----------------------------------------------------------------------------------------------------------------------
# Methods and layers of a DDP model that a training calls itself: `model.encode(x)`, `model.head(z)`.


@contextmanager
def as_forward(module: nn.Module, method: Callable[..., Any]) -> Iterator[None]:
    """Let the next call of `module` run `method`, and those within it the module's own forward again."""
    own = module.__dict__.get("forward")

    def restore() -> None:
        if own is not None:
            module.__dict__["forward"] = own
        else:
            module.__dict__.pop("forward", None)

    def run(*inputs: Any, **kwargs: Any) -> Any:
        restore()
        return method(*inputs, **kwargs)

    module.__dict__["forward"] = run
    try:
        yield
    finally:
        restore()


def enter_through(wrapper: Any, module: nn.Module, names: Collection[str]) -> frozenset[str]:
    """Return the methods among `names`; a layer among them is synchronised where the training runs it by itself.

    "forward" is the module: one that trains itself calls `self(x)`, past the wrapper.
    Raises ValueError for a name that the model does not have.
    """
    methods: set[str] = set()
    for name in names:
        try:
            value: Any = module if name == "forward" else module.get_submodule(name)
        except AttributeError:
            value = getattr(module, name, None)
        if isinstance(value, nn.Module):
            for layer in _run_by_themselves(value):
                unguard(layer)
                runs: list[_Run | None] = []
                layer.register_forward_pre_hook(_BeforeLayer(wrapper, runs), with_kwargs=True)
                layer.register_forward_hook(_AfterLayer(wrapper, runs), always_call=True)
        elif callable(value):
            methods.add(name)
        else:
            raise ValueError(
                f"methods={list(names)} of distribute_model: {type(module).__name__} has no method or layer {name!r}"
            )
    return frozenset(methods)


def _run_by_themselves(layer: nn.Module) -> Iterator[nn.Module]:
    """Yield a layer, or what a container without a forward of its own holds."""
    if isinstance(layer, (nn.ModuleList, nn.ModuleDict)):
        for part in layer.children():
            yield from _run_by_themselves(part)
    else:
        yield layer


class _Run(NamedTuple):
    """A run of a layer that has begun: the weight of its batch, and the forward pass that it is."""

    weight: float
    forward: AbstractContextManager[None]


class _Hook:
    """A hook of a layer that, outside the model's forward, is one. In a file, and in a copy, it does nothing."""

    def __init__(self, wrapper: Any, runs: list[_Run | None]) -> None:
        self.wrapper: Callable[[], Any] = weakref.ref(wrapper)
        self.runs = runs  # that have begun, None for one that is part of another

    def __reduce__(self) -> Any:
        return getattr, (nullcontext(), "__exit__")  # takes three arguments, returns None


class _BeforeLayer(_Hook):
    def __call__(self, layer: nn.Module, inputs: Any, kwargs: Any) -> Any:
        wrapper = self.wrapper()
        if wrapper is None or not _is_entered(layer):
            self.runs.append(None)
            return None
        weight = weight_for_model(inputs, kwargs)
        run = _Run(weight, running_forward())
        run.forward.__enter__()
        self.runs.append(run)
        wrapper.expect_backward()
        return scale_gradients((inputs, kwargs), 1.0 / weight) if weight not in (0.0, 1.0) else None


class _AfterLayer(_Hook):
    """Runs after an error in the layer, too: there is no output then."""

    def __call__(self, layer: nn.Module, inputs: Any, output: Any) -> Any:
        wrapper = self.wrapper()
        run = self.runs.pop() if self.runs else None
        if run is None:
            return None
        run.forward.__exit__(None, None, None)
        return None if output is None or wrapper is None else wrapper._gradient_sync.watch(output, run.weight)


def _is_entered(layer: nn.Module) -> bool:
    is_trained = layer.training and torch.is_grad_enabled() and not is_running_forward() and not in_backward()
    return is_trained and not is_sharing()


# ----------------------------------------------------------------------------------------------------------------------
# DistributedDataParallel that looks like the model it wraps.


def _by_module(name: str) -> Any:
    """Return a method of the wrapper: the module's own where its class has one, which may train a part of itself."""

    def method(self: DDPWrapper, *args: Any, **kwargs: Any) -> Any:
        module = unwrap_model(self)
        if self._keeps_prefix or getattr(type(module), name) is getattr(nn.Module, name):
            return getattr(super(DDPWrapper, self), name)(*args, **kwargs)
        result = getattr(module, name)(*args, **kwargs)
        return self if result is module else result

    method.__name__ = name
    return method


class DDPWrapper(ModuleAttributes, DistributedDataParallel):
    """DistributedDataParallel that looks like the wrapped module; outside a process group, the module itself.

    Attributes, `parameters()`, `state_dict()`, `train()` and other methods are the module's own, without a `module.` in
    names (but see `data_parallel`). Without gradients, and in evaluation mode while batches of `share_batches` are
    used, a call goes straight to the module, so ranks may make different numbers of calls; `broadcast_buffers` first.
    Parameters may be frozen and thawed at any time, on every rank in the same way, and one forward may serve several
    backward passes. A parameter that only some ranks used gets the mean with zeros for the others; without a gradient
    on every rank it keeps None. In an uneven last batch of `distribute_loader` the ranks count by their samples.

    Collective: every rank, to construct it and for every forward and backward with gradients. Keyword arguments are
    those of DistributedDataParallel, and `methods` of `distribute_model`. With `static_graph`, a communication hook of
    your own, or in `join()`, all is left to DDP; with `find_unused_parameters`, what is unused. Raises RuntimeError for
    a layer that is run in training past `model(...)`, and where the ranks' parameters differ (see `ConsistencyCheck`).
    """

    def __new__(cls, module: nn.Module, **options: Any) -> Any:
        return super().__new__(cls) if is_distributed() else module

    def __init__(self, module: nn.Module, *, methods: Collection[str] = (), **ddp_options: Any) -> None:
        named = (*all_named_parameters(module), *nn.Module.named_buffers(module))
        dense = [b for b in nn.Module.buffers(module) if b.layout == torch.strided and b.is_contiguous()]
        for buffer in dense:  # DDP cannot copy to what has the strides of `table.unsqueeze(0).transpose(0, 1)`
            buffer.data = buffer.data.view(-1).view(buffer.shape)
        sparse = [name for name, part in named if part.layout != torch.strided and not part.requires_grad]
        ignored = {*getattr(module, "_ddp_params_and_buffers_to_ignore", ()), *sparse}  # DDP cannot broadcast these
        module.__dict__.update({"_ddp_params_and_buffers_to_ignore": ignored} if sparse else {})
        own = {id(parameter) for name, parameter in all_named_parameters(module) if name in ignored}
        sync = GradientSync([p for p in all_parameters(module) if id(p) not in own], _num_passes(module, ddp_options))
        self.__dict__.update(_gradient_sync=sync, _ddp_options=ddp_options, _comm_hook=None, _has_own_hook=False)
        self._build(module)
        sync.compare = ConsistencyCheck(unwrap_model(module), own, self.process_group).end_of_pass
        if not hasattr(module, "_orig_mod"):  # a hook that reads global state would break a compiled graph
            guard_layers(unwrap_model(module))
        self.__dict__["_methods"] = enter_through(self, unwrap_model(module), methods)

    def __getattr__(self, name: str) -> Any:
        value = super().__getattr__(name)
        return partial(self._run_method, value) if name in self.__dict__.get("_methods", ()) else value

    def _run_method(self, method: Callable[..., Any], *inputs: Any, **kwargs: Any) -> Any:
        """Run a method of the model as its forward pass, or within the one that is running."""
        if is_running_forward():
            return method(*inputs, **kwargs)
        with as_forward(self.module, method):
            return self(*inputs, **kwargs)

    def _build(self, module: nn.Module) -> None:
        """Let DDP take note of what it is to reduce, which it does once, when it is constructed."""
        sync: GradientSync = self.__dict__["_gradient_sync"]
        left_out = [sync.parameters[number] for number in sync.unused]
        self.__dict__["_is_built"] = False
        for parameter in left_out:
            parameter.requires_grad_(False)
        options = dict(self._ddp_options)
        if torch.cuda.is_available() and next(all_parameters(module)).is_cuda:
            options.setdefault("device_ids", [torch.cuda.current_device()])
        try:
            super().__init__(module, **options)
        finally:
            for parameter in left_out:
                parameter.requires_grad_(True)
        del self.__dict__["dim"]  # of no use with one device per process, and it would hide the model's own `dim`
        self.__dict__.update(_is_built=True, _built=sync.wanted_of_ddp(), _placed=_placement(module))
        sync.reducer, sync.group = self.reducer, self.process_group
        sync.by_ddp = [] if self.find_unused_parameters else self._built

    def _follow_changes(self) -> None:
        """Let DDP reduce what was thawed, moved or is used, and wait no longer for what was frozen or never used."""
        sync: GradientSync = self._gradient_sync
        sync.follow_freezing()
        is_moved = self._placed != _placement(self.module)
        if is_moved:
            sync.look_again()
        elif sync.is_looking or self._built == sync.wanted_of_ddp():
            return
        own_state = (*nn.Module().__dict__, "require_backward_grad_sync")  # mode and hooks, which would be forgotten
        kept = {name: self.__dict__[name] for name in own_state if name in self.__dict__}
        self._build(self.module)
        self.__dict__.update(kept)
        if self._comm_hook:
            super().register_comm_hook(*self._comm_hook)

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        sync: GradientSync = self._gradient_sync
        if not torch.is_grad_enabled() or (is_sharing() and not self.training):
            return self._forward_alone(inputs, kwargs)
        if not any(parameter.requires_grad for parameter in all_parameters(self.module)):
            with running_forward():  # a frozen discriminator: there is nothing to synchronise
                return self.module(*inputs, **kwargs)
        if self._join_config.enable:  # ranks that have run out of batches follow DDP's own steps only
            sync.leave_to_ddp()
        self._follow_changes()
        weight = weight_for_model(inputs, kwargs)
        if weight not in (0.0, 1.0):  # what flows on into another model, which weighs for itself, is as it was
            inputs, kwargs = scale_gradients((inputs, kwargs), 1.0 / weight)
        sync.is_wanted = self.require_backward_grad_sync and not self._is_left_to_ddp
        sync.is_armed = sync.is_wanted and not sync.is_looking
        with running_forward():
            if sync.is_wanted and sync.is_looking:
                output = self._forward_unreduced(inputs, kwargs)
            else:
                output = super().forward(*inputs, **kwargs)
        if sync.is_wanted:
            return sync.watch(output, weight)
        return output if weight == 1.0 else scale_gradients(output, weight)

    @property
    def _is_left_to_ddp(self) -> bool:
        return bool(self._join_config.enable or self.static_graph or self._has_own_hook)

    def expect_backward(self) -> None:
        """Average at the end of the next backward pass what a layer outside the model's forward gives gradients."""
        self._gradient_sync.follow_freezing()
        self._gradient_sync.is_wanted = self.require_backward_grad_sync and not self._is_left_to_ddp

    def _forward_unreduced(self, inputs: Any, kwargs: Any) -> Any:
        """Run a forward after which DDP leaves the gradients alone."""
        self.require_backward_grad_sync = False
        try:
            return super().forward(*inputs, **kwargs)
        finally:
            self.require_backward_grad_sync = self.require_forward_param_sync = True

    def _forward_alone(self, inputs: Any, kwargs: Any) -> Any:
        """Run a forward of an evaluation, in which the other ranks take no part."""
        if self._keeps_prefix and self.device_ids:  # as DataParallel does; with gradients DDP itself does so
            moved, named = scatter_kwargs(inputs, kwargs, self.device_ids)
            inputs, kwargs = moved[0] if moved else inputs, named[0] if named else kwargs
        self._gradient_sync.is_wanted = self._gradient_sync.is_wanted and not is_sharing()
        if not self.training:
            end_batches_in_use()
        with running_forward(), own_statistics(self.module) if is_sharing() else nullcontext():
            return self.module(*inputs, **kwargs)

    def register_comm_hook(self, state: Any, hook: Callable[..., Any]) -> None:
        """Let gradients travel by a hook of your own; what it leaves on each rank is then its own affair."""
        super().register_comm_hook(state, hook)
        self.__dict__.update(_comm_hook=(state, hook), _has_own_hook=True)
        self._gradient_sync.leave_to_ddp()

    def train(self, *args: Any, **kwargs: Any) -> Any:
        self._set_mode([*args, *kwargs.values(), True][0], "train", *args, **kwargs)
        return self

    def eval(self) -> Any:
        self._set_mode(False, "train" if self._keeps_prefix else "eval", *([False] if self._keeps_prefix else []))
        return self

    def _set_mode(self, mode: bool, method: str, *args: Any, **kwargs: Any) -> None:
        """Switch the mode by the module's own method, which may leave a frozen part as it is, or take no argument."""
        if not mode and self.__dict__.get("broadcasts_before_evaluation"):
            broadcast_buffers(self)
        getattr(self.module, method)(*args, **kwargs)
        self.training = mode

    parameters, buffers = _by_module("parameters"), _by_module("buffers")
    zero_grad, requires_grad_, apply = _by_module("zero_grad"), _by_module("requires_grad_"), _by_module("apply")
    to, cuda, cpu, type = _by_module("to"), _by_module("cuda"), _by_module("cpu"), _by_module("type")
    float, half, double, bfloat16 = map(_by_module, ("float", "half", "double", "bfloat16"))

    def __getitem__(self, index: Any) -> Any:
        return unwrap_model(self)[index]  # type: ignore[index]

    def __len__(self) -> int:
        return len(unwrap_model(self))  # type: ignore[arg-type]

    def __bool__(self) -> bool:
        return True  # as a module without a length is

    def __iter__(self) -> Iterator[Any]:
        return iter(unwrap_model(self))  # type: ignore[call-overload]

    def __setattr__(self, name: str, value: Any) -> None:
        if not self.__dict__.get("_is_built") or name in self.__dict__ or hasattr(type(self), name):
            super().__setattr__(name, value)
        elif isinstance(value, (nn.Module, nn.Parameter)):
            raise RuntimeError(
                f"model.{name} was replaced after wrapping, so DDP would not synchronise the new parameters; "
                "change the model before distribute_model / DDPWrapper"
            )
        else:
            setattr(unwrap_model(self), name, value)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """A copy or a pickle is of the module alone: an EMA, a teacher, a whole model in a file."""
        module = unwrap_model(self)
        return (nn.DataParallel, (module,)) if self._keeps_prefix else reduced_as(module, protocol)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        copied = copy.deepcopy(unwrap_model(self), memo)
        return OneDevice(copied) if self._keeps_prefix else copied

    @property
    def _keeps_prefix(self) -> bool:
        """Whether it takes the place of a DataParallel, with `module.` in its names: see `data_parallel`."""
        return bool(self.__dict__.get(KEEPS_PREFIX))

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        if self._keeps_prefix:
            kwargs["prefix"] = kwargs.get("prefix", "") + MODULE_PREFIX
        return unwrap_model(self).state_dict(*args, **kwargs)

    def load_state_dict(self, state_dict: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        return unwrap_model(self).load_state_dict(strip_wrapper_prefixes(state_dict), *args, **kwargs)

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any, **kwargs: Any) -> None:
        """As part of another module that loads its own: the names are those without this wrapper."""
        own = [key for key in state_dict if key.startswith(prefix) and not key.startswith(prefix + MODULE_PREFIX)]
        for key in own:
            state_dict[prefix + MODULE_PREFIX + key[len(prefix) :]] = state_dict.pop(key)
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)

    def named_parameters(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, nn.Parameter]]:
        named: Any = super() if self._keeps_prefix else unwrap_model(self)
        return named.named_parameters(*args, **kwargs)

    def named_buffers(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, torch.Tensor]]:
        named: Any = super() if self._keeps_prefix else unwrap_model(self)
        return named.named_buffers(*args, **kwargs)


def _placement(module: nn.Module) -> list[tuple[torch.device, torch.dtype]]:
    """Return where parameters are, and of which type: a model may be moved after it was wrapped."""
    return [(parameter.device, parameter.dtype) for parameter in all_parameters(module)]


def _num_passes(module: nn.Module, ddp_options: Mapping[str, Any]) -> int:
    """Return in how many backward passes the ranks look which parameters are used."""
    if ddp_options.get("static_graph") or ddp_options.get("find_unused_parameters"):
        return 0
    is_sparse = any(layer.sparse for layer in module.modules() if isinstance(layer, (nn.Embedding, nn.EmbeddingBag)))
    return FOREVER if is_sparse else 0 if "find_unused_parameters" in ddp_options else FIRST_PASSES


@torch.no_grad()
def broadcast_buffers(model: nn.Module) -> None:
    """Give every rank rank 0's buffers (BatchNorm statistics), the ones a checkpoint holds. Collective: every rank.

    DDP does this at the start of each training forward; before an evaluation the last step's update is still local.
    """
    dense = [b for b in unwrap_model(model).buffers() if not b.is_sparse] if is_distributed() else []
    for buffers in _take_tensors(dense, BYTES_AT_ONCE):
        packed = _flatten_dense_tensors(buffers)
        dist.broadcast(packed, src=0, group=group_for(packed))
        for buffer, part in zip(buffers, _unflatten_dense_tensors(packed, buffers)):
            buffer.copy_(part)


# ----------------------------------------------------------------------------------------------------------------------
# Models over all ranks; the identity outside a group.


STRATEGY_TWIN = "RETROFIT_STRATEGY"
SHARDED_NUMBER = "sharded_number"  # in the __dict__ of a model that RETROFIT_STRATEGY=fsdp has sharded, in place

TensorT = TypeVar("TensorT", bound=torch.Tensor)
ModelsT = TypeVar("ModelsT")


def distribute_model(
    model: nn.Module,
    strategy: str | None = None,
    *,
    sync_batchnorm: bool | None = None,
    find_unused_parameters: bool | None = None,
    methods: Collection[str] = (),
    **options: Any,
) -> nn.Module:
    """Return `model` with gradients averaged and BatchNorm statistics taken over all samples of all ranks.

    Move it to its device first, and create the optimizer afterwards. Without `sync_batchnorm` (by default what
    RETROFIT_BATCHNORM says: sync, or local) every rank keeps its own BatchNorm statistics, which is faster and another
    training; `model.eval()` then gives all ranks those of rank 0, and every rank must call it. Unused parameters are
    found, unless `find_unused_parameters` is given, DDP's own option. `methods`: names of its methods and layers that
    the training calls itself, as `model.encode(x)` and `model.head(z)`, instead of the model or in addition to it.

    `strategy`, for a training loop that is written for `rd.strategies`: a value of `--strategy`; DDP by default.
    `options` go to the strategy's wrapper and win over the flags. None comes back as None. Collective: every rank.
    Raises ValueError for an unknown strategy, value or kind of BatchNorm layer, RuntimeError before setup_distributed.
    """
    if model is None:  # a part that the options leave out: `encoder = Encoder() if args.vae else None`
        return model
    require_group("distribute_model")
    if _is_wrapped(model):
        return model
    by_environment = _wrapper_by_environment() if strategy is None else None
    if strategy is not None and strategy not in STRATEGIES:
        raise ValueError(
            f"unknown strategy {strategy!r}; use one of: {', '.join(STRATEGIES)}; the others are in the whole kit: "
            "pip install CLONE (the path of its clone), and write `import retrofit.distributed as rd`"
        )
    is_synchronised = read_twin(BATCHNORM) == "sync" if sync_batchnorm is None else sync_batchnorm
    module = model.module if isinstance(model, OneDevice) else model
    converted = convert_sync_batchnorm(module) if is_synchronised else module
    if find_unused_parameters is not None:
        options["find_unused_parameters"] = find_unused_parameters
    if methods:
        options["methods"] = methods
    wrapped = (by_environment or STRATEGIES[strategy or "ddp"])(converted, **options)
    if isinstance(wrapped, DDPWrapper) or SHARDED_NUMBER in wrapped.__dict__:
        # With statistics of their own, the ranks would evaluate different models.
        wrapped.__dict__["broadcasts_before_evaluation"] = not is_synchronised
    if wrapped is module:
        return model
    if isinstance(wrapped, DDPWrapper):
        wrapped.__dict__[KEEPS_PREFIX] = isinstance(model, OneDevice)
    elif isinstance(model, OneDevice) and SHARDED_NUMBER in wrapped.__dict__:
        model.module = wrapped  # whose class or BatchNorm layer was changed
        return model
    return wrapped


def _is_wrapped(model: nn.Module) -> bool:
    """Return whether a model is wrapped already; under torch's DataParallel one process drives all GPUs."""
    if isinstance(model, OneDevice):
        return isinstance(model.module, DDPWrapper)
    return isinstance(model, (DDPWrapper, nn.DataParallel))


def distribute_models(models: ModelsT, *, methods: Collection[str] = (), **options: Any) -> ModelsT:
    """Return `models`, a dict or a list of models, with each of them as `distribute_model` returns it, in its place.

    Also in tuples, in nn.ModuleDict and nn.ModuleList, in attributes of a namespace, and in containers inside of these;
    what is not a model stays as it is. A model that has several places is wrapped once. `methods` count for those that
    have them, `options` are those of `distribute_model`. Collective: every rank. Raises ValueError where no model is in
    it: call it after the models are put there.
    """
    wrapped: dict[int, nn.Module] = {}

    def wrap(model: nn.Module) -> nn.Module:
        if id(model) not in wrapped:
            own = [name for name in methods if hasattr(model, name.partition(".")[0])]
            wrapped[id(model)] = distribute_model(model, methods=own, **options)
        return wrapped[id(model)]

    result: ModelsT = _replaced(models, wrap)
    if not wrapped:
        raise ValueError(f"no model is in this {type(models).__name__} yet; call distribute_models after it is filled")
    return result


def _replaced(held: Any, wrap: Callable[[nn.Module], nn.Module]) -> Any:
    """Return what is given with other models in it: in place, but for a tuple."""
    if isinstance(held, nn.Module) and not isinstance(held, (nn.ModuleDict, nn.ModuleList)):
        return wrap(held)
    if isinstance(held, tuple):
        parts = [_replaced(part, wrap) for part in held]
        return type(held)(*parts) if hasattr(held, "_fields") else type(held)(parts)
    if isinstance(held, (MutableMapping, nn.ModuleDict)):
        entries: Any = held
        places = list(held)
    elif isinstance(held, (MutableSequence, nn.ModuleList)):
        entries, places = held, list(range(len(held)))
    elif isinstance(held, (SimpleNamespace, argparse.Namespace)):
        entries, places = vars(held), list(vars(held))
    else:
        return held
    for place in places:
        part = entries[place]
        other = _replaced(part, wrap)
        if other is not part:
            entries[place] = other
    return held


def wrap_ddp(model: nn.Module, **options: Any) -> nn.Module:
    """Return `model` in a DDPWrapper; a model that is not trained as it is."""
    if not any(parameter.requires_grad for parameter in all_parameters(model)):
        return model
    if get_option("find_unused_parameters"):
        options.setdefault("find_unused_parameters", True)
    return DDPWrapper(model, **options)


STRATEGIES: dict[str, Callable[..., nn.Module]] = {"ddp": wrap_ddp}  # rd.strategies puts the others in
# What RETROFIT_STRATEGY can ask for in a script that knows of no strategy; the sharded models put fsdp in.
BY_ENVIRONMENT: dict[str, Callable[..., nn.Module]] = {"auto": wrap_ddp, "ddp": wrap_ddp}


def _wrapper_by_environment() -> Callable[..., nn.Module]:
    """Return what wraps a model as RETROFIT_STRATEGY says. Raises ValueError for a value that means nothing here."""
    asked = os.environ.get(STRATEGY_TWIN) or "auto"
    if asked in BY_ENVIRONMENT:
        return BY_ENVIRONMENT[asked]
    if asked == "fsdp":
        raise ValueError(
            f"{STRATEGY_TWIN}=fsdp needs a part that {__file__} does not have; this puts it there and changes nothing "
            "else: retrofit convert SCRIPT --with fsdp --update-runtime"
        )
    raise ValueError(
        f"{STRATEGY_TWIN}={asked} is unknown here; use one of: auto, ddp, fsdp; a training loop that is written for "
        "rd.strategies names the others itself: rd.distribute_model(model, strategy=...)"
    )


def distribute_parameter(tensor: TensorT) -> TensorT:
    """Return `tensor`, which an optimizer changes, with rank 0's values and gradients averaged over all ranks.

    For what lies outside the models of `distribute_model`: weights of several losses, learnt centers. In an uneven last
    batch the ranks count by their numbers of samples. Outside a group, and for a tensor that needs no gradient, nothing
    happens. Collective: every rank, and every backward that reaches the tensor.
    """
    if not is_distributed() or not tensor.requires_grad:
        return tensor
    with torch.no_grad():  # also the values that a script gave it since the last call
        tensor.copy_(broadcast_object(tensor.detach().cpu()))
    hooks = getattr(tensor, "_backward_hooks", None) or {}
    if _average_over_ranks not in hooks.values():
        tensor.register_hook(_average_over_ranks)
    return tensor


@torch.utils.hooks.unserializable_hook  # torch.save leaves it out without a warning
def _average_over_ranks(gradient: torch.Tensor) -> torch.Tensor:
    if is_sharing():  # an evaluation with gradients, which the other ranks are not in
        return gradient
    weight = weight_of()
    return reduce_mean(gradient if weight == 1.0 else gradient * weight)


# ----------------------------------------------------------------------------------------------------------------------
# Start torchrun so that a signal or a failed rank ends the job in one clear line, with the status of the ranks.


SAME_EVENT_S = 1.0  # a terminal and a job manager may both send the signal of one key


class LaunchedJob:
    """The ranks that torchrun starts on this machine, and the signals that have come for them."""

    def __init__(self) -> None:
        self.received: list[signal.Signals] = []
        self._last_s = 0.0
        self._ranks: Any = None  # torch's PContext, once it has started them
        self._early = 0  # a signal that came before

    def start(self, begin: Callable[[Any], None], ranks: Any) -> None:
        """Start the ranks by `begin`, in sessions of their own: the keys of the terminal reach the launcher alone."""
        signal.signal(signal.SIGHUP, self.receive)
        self._ranks, popen = None, subprocess.Popen
        subprocess.Popen = functools.partial(popen, start_new_session=True)  # type: ignore[assignment,misc]
        try:
            begin(ranks)
        finally:
            subprocess.Popen = popen  # type: ignore[misc]
        self._ranks = ranks
        if self._early:
            self._send(self._early)

    def receive(self, number: int, frame: Any) -> None:
        """Handle a signal, in place of torchrun."""
        if self.received and time.monotonic() - self._last_s < SAME_EVENT_S:
            return
        self._last_s = time.monotonic()
        self.received.append(signal.Signals(number))
        logging.disable(logging.CRITICAL)  # torchrun's account of how it ends
        if len(self.received) > 2:
            self._send(signal.SIGKILL)
        if len(self.received) > 1:
            raise self.as_exception()
        if number == signal.SIGINT:
            say_as_launcher("waiting for the ranks to stop; Ctrl-C again stops them within 30 seconds")
        self._send(number)

    def _send(self, number: int) -> None:
        if self._ranks is None:
            self._early = number
            return
        for pid in self._ranks.pids().values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def as_exception(self) -> Exception:
        """Return what torchrun raises at a signal: it stops the ranks and starts them no more."""
        from torch.distributed.elastic.multiprocessing.api import SignalException

        return SignalException(f"received {self.received[0].name}", sigval=self.received[-1])

    def watch(self) -> tuple[type[Exception], ...]:
        """Have torchrun start its ranks here; return what it raises when they do not end well."""
        try:
            from torch.distributed.elastic.agent.server.api import SimpleElasticAgent
            from torch.distributed.elastic.multiprocessing import api
            from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
        except ImportError:  # not a torch that we know: its launcher does as it likes
            return ()

        start, restart = api.PContext.start, SimpleElasticAgent._restart_workers

        def restart_unless_stopped(agent: Any, group: Any) -> None:
            if self.received:  # the ranks ended because they were told to
                raise self.as_exception()
            restart(agent, group)

        api._terminate_process_handler = self.receive  # type: ignore[assignment]
        api.PContext.start = lambda ranks: self.start(start, ranks)  # type: ignore[method-assign,assignment]
        SimpleElasticAgent._restart_workers = restart_unless_stopped  # type: ignore[method-assign]
        return api.SignalException, ChildFailedError

    def report(self, error: Exception) -> int:
        """Say how the job ended and return its exit status."""
        failures = getattr(error, "failures", {})
        if self.received or not failures:
            number = self.received[0] if self.received else getattr(error, "sigval", signal.SIGTERM)
            say_as_launcher(f"stopped by {signal.Signals(number).name}")
            return 128 + number
        rank, first = min(failures.items(), key=lambda item: item[1].timestamp)
        how = f"ended with exit status {first.exitcode}; its message is above"
        if first.exitcode < 0:
            hint = "; often that is the system, out of memory: see `dmesg`" if -first.exitcode == signal.SIGKILL else ""
            how = f"was killed by {first.signal_name()}{hint}"
        name = f"rank {rank} (local rank {first.local_rank}, process {first.pid})"
        say_as_launcher(f"the job has failed: {name} {how}")
        return 1


def launch(argv: Sequence[str]) -> int:
    """Run the launcher module `argv[0]` with the arguments that follow it and return the job's exit status."""
    if not argv:
        say_as_launcher("name a launcher and its arguments: torch.distributed.run --nproc_per_node=2 train.py")
        return 2
    job, expected = LaunchedJob(), (KeyboardInterrupt,)
    try:
        expected += job.watch()  # type: ignore[assignment]
        sys.argv[:] = argv
        runpy.run_module(argv[0], run_name="__main__", alter_sys=True)
    except expected as error:
        # an interruption comes here before there were ranks
        return 128 + signal.SIGINT if isinstance(error, KeyboardInterrupt) else job.report(error)
    return 0


def say_as_launcher(text: str) -> None:
    """Print a line that is known for the launcher's; the terminal may be gone."""
    with contextlib.suppress(OSError):
        print(f"\n[launcher] {text}", file=sys.stderr, flush=True)  # a progress bar leaves its line open


# In the library the functions are in modules by subject: rd.loss.batch_sum.
collectives = data = devices = environment = evaluation = learning_rate = sys.modules[__name__]
loss = model = options = output = process_group = random_state = sys.modules[__name__]
search = sys.modules[__name__]


def __getattr__(name: str) -> Any:
    raise AttributeError(
        f"{name} is not in {__file__}; a newer kit may have it (`retrofit convert --update-runtime`), the library "
        "has strategies, checkpoints and jobs: install the kit and `import retrofit.distributed as rd`"
    )


if __name__ == "__main__":
    if sys.path[0] == os.path.dirname(os.path.abspath(sys.argv[0])):
        del sys.path[0]  # this folder, where a module may hide one of the library
    sys.exit(launch(sys.argv[1:]))
# Unchanged while the text above has the SHA-256 a391d2c202ae6a159d97c562da95a514e555765b863ee784f91a89b1eaa19c19
