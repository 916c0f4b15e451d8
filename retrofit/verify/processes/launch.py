"""Start, watch and end the processes of runs. The calling process forks: it has used neither threads nor CUDA.

Ranks for which a launch names an interpreter are forked there.
"""

from __future__ import annotations

import os
import random
import signal
import socket
import sys
import threading
import time
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, Callable, NoReturn

import torch

from .child import Target, rank_environ, run_rank
from .hang import HangWatch
from .interpreters import Interpreter
from .rank_process import KILL_S, TERMINATE_S, RankProcess, collect_stacks, end_ranks, find_relatives

__all__ = ["Launch", "RunResult", "free_port", "run_together", "signals_raise"]

POLL_S = 0.02
PORTS = (10_240, 32_768)  # the kernel's range for connections begins at 32768 (ip_local_port_range)
MOST_PORTS_TRIED = 1000
PROGRESS_S = 0.5
FAILED_GRACE_S = 5.0  # a rank whose peer fails usually ends by itself, with a message of its own
LEFT_OVER_S = 1.0  # multiprocessing's resource tracker ends shortly after the process that it serves
ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True)
class Launch:
    """What one run starts: one process per element of `settings`.

    `settings[r]` has the attributes folder, rank, world_size and project; more than one means a launcher's variables,
    unless the script starts its processes itself (`is_launched` is False).
    `script` is relative to the project, `environ` are extra variables and win over all others. `target(settings,
    script, argv)` runs in the process; it is `retrofit.verify.trace.run.run_traced` unless given, and finds the
    modules of the kit dropped: what it imports while it runs may be the project's own copy. `interpreters` fork the
    ranks that they have as keys; without a `target` of the caller's.
    """

    settings: Sequence[Any]
    script: str
    argv: Sequence[str] = ()
    environ: Mapping[str, str] = field(default_factory=dict)
    num_threads: int = 1
    target: Target | None = None
    interpreters: Mapping[int, Interpreter] = field(default_factory=dict)
    is_launched: bool = True  # several processes get a launcher's variables


@dataclass(frozen=True)
class RunResult:
    """How a run ended.

    `statuses[r]` is rank r's exit status as `subprocess` has it (-9: killed by SIGKILL), None for a rank that we had
    to end. `stacks[r]` is the faulthandler dump of a rank that we ended. `seconds`: until the last rank had ended or
    the run was given up.
    """

    statuses: list[int | None]
    seconds: float
    hung: bool
    timed_out: bool
    stacks: dict[int, str]


def run_together(
    launches: Sequence[Launch],
    *,
    time_limit_s: float,
    idle_s: float = 20.0,
    on_progress: Callable[[], object] | None = None,
    max_processes: int | None = None,
) -> list[RunResult]:
    """Run the launches side by side, as many as fit into `max_processes`, and return their results in order.

    A run is ended when it hangs (`HangWatch`), when it has run for `time_limit_s`, or 5 s after one of its ranks has
    failed. Afterwards no process of it is left. Whatever ends this function early (Ctrl-C, SIGTERM, an error of
    `on_progress`) ends all runs first. `on_progress` is called at most twice a second while runs are live. Call this
    function in the main thread.

    Raises ValueError for a launch that never fits, RuntimeError when this process has initialised CUDA.
    """
    _check(launches, max_processes)
    runs = [_Run(launch, time_limit_s, idle_s) for launch in launches]
    waiting, live = list(runs), list[_Run]()
    reported = time.monotonic()
    with signals_raise():
        try:
            while waiting or live:
                for run in list(waiting):
                    if max_processes is None or sum(map(len, live)) + len(run) <= max_processes:
                        waiting.remove(run)
                        live.append(run)
                        run.start()
                live = [run for run in live if run.continues()]
                if on_progress is not None and live and time.monotonic() - reported >= PROGRESS_S:
                    reported = time.monotonic()
                    on_progress()
                if live:
                    time.sleep(POLL_S)
        except BaseException:
            _end_at_once([rank for run in runs for rank in run.ranks])
            raise
    return [run.result() for run in runs]


def free_port(taken: Collection[int] = ()) -> int:
    """Return a TCP port of 127.0.0.1 that no process listens on and that is not among `taken`.

    Below those that the kernel gives to connections: one of them may be in use again before a rank listens on it.
    """
    draw = random.SystemRandom()
    for _ in range(MOST_PORTS_TRIED):
        port = draw.randrange(*PORTS)
        if port not in taken and _can_be_bound(port):
            return port
    raise OSError(f"none of {MOST_PORTS_TRIED} ports between {PORTS[0]} and {PORTS[1]} is free on 127.0.0.1")


def _can_be_bound(port: int) -> bool:
    with socket.socket() as listener:
        try:
            listener.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


class _Run:
    """One launch on its way from the start to the end of its last process."""

    ports: set[int] = set()  # noqa: RUF012  shared on purpose: the kernel may offer a port again before it is used

    def __init__(self, launch: Launch, time_limit_s: float, idle_s: float) -> None:
        self.launch = launch
        self.time_limit_s = time_limit_s
        self.idle_s = idle_s
        self.ranks: list[RankProcess] = []
        self.started = self.seconds = 0.0
        self.is_hung = self.is_timed_out = False
        self._life = self._live()

    def __len__(self) -> int:
        return len(self.launch.settings)

    def start(self) -> None:
        """Fork all ranks."""
        for interpreter in self.launch.interpreters.values():
            interpreter.wait_until_ready()
        self.started = time.monotonic()
        master_port = free_port(self.ports) if len(self) > 1 and self.launch.is_launched else None
        if master_port is not None:
            self.ports.add(master_port)
        target = self.launch.target or _run_traced()
        for settings in self.launch.settings:
            os.makedirs(settings.folder, exist_ok=True)
            environ = rank_environ(
                os.environ,
                rank=settings.rank,
                world_size=len(self),
                master_port=master_port,
                num_threads=self.launch.num_threads,
            )
            self._fork(target, settings, {**environ, **self.launch.environ})

    def continues(self) -> bool:
        """Look after the run once and return whether there is something left to look after."""
        return next(self._life, "ended") is None

    def result(self) -> RunResult:
        stacks = {rank.rank: rank.stack_file for rank in self.ranks if rank.is_ended_by_us}
        return RunResult(
            statuses=[rank.status for rank in self.ranks],
            seconds=self.seconds,
            hung=self.is_hung,
            timed_out=self.is_timed_out,
            stacks={
                rank: path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
                for rank, path in stacks.items()
            },
        )

    def _fork(self, target: Target, settings: Any, environ: Mapping[str, str]) -> None:
        sys.stdout.flush()  # or the child would write out what is buffered a second time
        sys.stderr.flush()
        arguments = settings, self.launch.script, self.launch.argv
        options: Any = {"environ": environ, "num_threads": self.launch.num_threads}
        interpreter = None if self.launch.target else self.launch.interpreters.get(settings.rank)
        with _signals_wait():  # a signal between the fork and the next line would orphan the child
            pid = interpreter.fork(*arguments, **options) if interpreter else None
            if pid is None:
                with warnings.catch_warnings():
                    # Python 3.12 warns of a fork with threads; those of numpy's BLAS survive it by their own handlers.
                    warnings.simplefilter("ignore", DeprecationWarning)
                    pid = os.fork()
            if pid == 0:
                run_rank(target, *arguments, **options)
            self.ranks.append(RankProcess(settings.rank, pid, settings.folder))

    def _live(self) -> Iterator[None]:
        yield from self._watch()
        self.seconds = time.monotonic() - self.started
        if any(rank.is_running for rank in self.ranks):
            yield from collect_stacks(self.ranks)
        else:
            find_relatives(self.ranks)
            deadline = time.monotonic() + LEFT_OVER_S
            while time.monotonic() < deadline and not all(rank.is_gone() for rank in self.ranks):
                yield
        yield from end_ranks(self.ranks, {signal.SIGTERM: TERMINATE_S, signal.SIGKILL: KILL_S})

    def _watch(self) -> Iterator[None]:
        """Continue until all ranks have ended or the run is to be ended."""
        watch = HangWatch(idle_s=self.idle_s, world_size=len(self), now=self.started)
        ended: float | None = None
        failed: float | None = None
        while any([rank.poll() for rank in self.ranks]):
            now = time.monotonic()
            if ended is None and not all(rank.is_running for rank in self.ranks):
                ended = now
            if now - self.started >= self.time_limit_s:
                self.is_timed_out = True
                return
            if watch.is_due(now):
                find_relatives(self.ranks)
                cpu_s = {rank.rank: rank.cpu_s() for rank in self.ranks if rank.is_running}
                watch.measure(now, cpu_s, sum(rank.trace_bytes() for rank in self.ranks))
            if any(rank.status for rank in self.ranks):
                failed = failed or now
                if now - failed >= FAILED_GRACE_S:
                    return
            elif watch.is_hung(ended=ended):
                self.is_hung = True
                return
            yield


def _check(launches: Sequence[Launch], max_processes: int | None) -> None:
    for index, launch in enumerate(launches):
        if [settings.rank for settings in launch.settings] != list(range(len(launch.settings) or 1)):
            ranks = [settings.rank for settings in launch.settings]
            raise ValueError(f"launch {index} has the ranks {ranks}; give one settings per rank, from 0 on, in order")
        if max_processes is not None and len(launch.settings) > max_processes:
            raise ValueError(
                f"launch {index} has {len(launch.settings)} ranks and never fits into max_processes={max_processes}; "
                "allow as many processes as the largest launch has ranks"
            )
    if torch.cuda.is_initialized():
        raise RuntimeError("CUDA is initialised in this process, and a forked process cannot use it; fork before that")


def _run_traced() -> Target:
    from retrofit.verify.trace.run import run_traced

    return run_traced


@contextmanager
def _signals_wait() -> Iterator[None]:
    """Hold back the signals that end this process until the block is over."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def signals_raise() -> Iterator[None]:
    """Turn SIGTERM and SIGHUP, whose default is a sudden end, into SystemExit with the shell's status for them."""

    def leave(number: int, frame: FrameType | None) -> NoReturn:
        raise SystemExit(128 + number)

    replaced = []
    if threading.current_thread() is threading.main_thread():
        replaced = [number for number in ENDING_SIGNALS if signal.getsignal(number) == signal.SIG_DFL]
    for number in replaced:
        signal.signal(number, leave)
    try:
        yield
    finally:
        for number in replaced:
            signal.signal(number, signal.SIG_DFL)


def _end_at_once(ranks: Sequence[RankProcess]) -> None:
    """End all ranks and wait for it, whatever signal comes meanwhile."""
    with _signals_wait():
        for _ in end_ranks(ranks, {signal.SIGTERM: 0.5, signal.SIGKILL: KILL_S}):
            time.sleep(POLL_S)
