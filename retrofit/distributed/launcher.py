"""Start torchrun, or torch.distributed.launch, so that a signal or a failed rank ends the job in a few clear words.

  python launcher.py torch.distributed.run --nproc_per_node=2 --standalone train.py ARGUMENTS OF train.py
  python -m retrofit.distributed.launcher torch.distributed.launch --use_env ...     where the kit is installed

torchrun by itself ends with a traceback of its own after whatever the ranks said, with status 1, and kills ranks that
need more than 30 seconds to save. Here a signal is passed on to the ranks, which take the time that they need; the
second one is torchrun's to handle, the third one kills. The status is that of the ranks.
"""

from __future__ import annotations

import sys

if __name__ == "__main__" and sys.path and __file__.startswith(sys.path[0]):
    del sys.path[0]  # this folder, where `output` and others would hide modules of that name

import contextlib
import logging
import os
import runpy
import signal
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
SINCE_START = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # the former is Linux's, as is /proc
SAME_EVENT_S = 1.0  # a terminal and a job manager may both send the signal of one key


class _Signal(NamedTuple):
    """A signal for the ranks; those in the process group `reached` that had started by `time_s` have had it."""

    number: int
    reached: int | None = None
    time_s: float = 0.0  # since the machine started


class Job:
    """The ranks on this machine, and the signals that the launcher has received."""

    def __init__(self) -> None:
        self.received: list[signal.Signals] = []
        self._last_s = 0.0
        self._processes: Any = None  # torch's PContext
        self._waiting: list[_Signal] = []  # for the ranks to be there

    @contextlib.contextmanager
    def starting(self, processes: Any) -> Iterator[None]:
        """Take the signals over from torchrun, which would set its handlers; one that comes now is passed on after."""
        self._processes = None
        for number in SIGNALS:
            signal.signal(number, self._receive)
        set_handler = signal.signal
        signal.signal = lambda number, handler: set_handler(number, self._receive if number in SIGNALS else handler)  # type: ignore[assignment,arg-type]
        try:
            yield
        finally:
            signal.signal = set_handler
        waiting, self._waiting = self._waiting, []
        self._processes = processes
        for one in waiting:
            self._send(one)

    def _receive(self, number: int, frame: Any) -> None:
        again = time.monotonic() - self._last_s > SAME_EVENT_S
        if self.received and not again:
            return
        self._last_s = time.monotonic()
        self.received.append(signal.Signals(number))
        logging.disable(logging.CRITICAL)  # torchrun's account of how it ends
        if len(self.received) > 2:
            self._send(_Signal(signal.SIGKILL))
        if len(self.received) > 1:
            raise self.as_exception()
        if number == signal.SIGINT:
            say("waiting for the ranks to stop; Ctrl-C again stops them within 30 seconds")
        # What the terminal sends reaches the ranks by itself if they are in its foreground group, too.
        reached = os.getpgrp() if number != signal.SIGTERM and _is_in_foreground() else None
        one = _Signal(number, reached, time.clock_gettime(SINCE_START))
        if self._processes is None:
            self._waiting.append(one)
        else:
            self._send(one)

    def _send(self, one: _Signal) -> None:
        for pid in self._processes.pids().values() if self._processes is not None else ():
            with contextlib.suppress(ProcessLookupError):
                if os.getpgid(pid) != one.reached or _start_s(pid) > one.time_s:
                    os.kill(pid, one.number)

    def as_exception(self) -> Exception:
        """Return what torchrun raises at a signal: it stops the ranks and starts them no more."""
        from torch.distributed.elastic.multiprocessing.api import SignalException

        return SignalException(f"received {self.received[0].name}", sigval=self.received[-1])


def _start_s(pid: int) -> float:
    """Return when a process was started, in seconds since the machine was; 0 where the system does not say."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return int(file.read().rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
    except OSError:
        return 0.0


def main(argv: Sequence[str]) -> int:
    """Run the launcher module `argv[0]` with the arguments that follow it and return the job's exit status."""
    job = Job()
    try:
        expected = _watch(job)
        sys.argv[:] = argv
        runpy.run_module(argv[0], run_name="__main__", alter_sys=True)
    except KeyboardInterrupt:  # before there were ranks
        return 128 + signal.SIGINT
    except Exception as error:
        if not isinstance(error, expected):
            raise
        return _report(error, job)
    return 0


def _watch(job: Job) -> tuple[type[Exception], ...]:
    """Let `job` know of the ranks of every start; return what the launcher raises when they do not end well."""
    try:
        from torch.distributed.elastic.agent.server.api import SimpleElasticAgent
        from torch.distributed.elastic.multiprocessing.api import PContext, SignalException
        from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    except ImportError:  # not a torch that we know: its launcher does as it likes
        return ()
    start, restart = PContext.start, SimpleElasticAgent._restart_workers

    def started(processes: PContext) -> None:
        with job.starting(processes):
            start(processes)

    def restarted(agent: SimpleElasticAgent, group: Any) -> None:
        if job.received:  # the ranks ended because they were told to
            raise job.as_exception()
        restart(agent, group)

    PContext.start = started  # type: ignore[method-assign,assignment]
    SimpleElasticAgent._restart_workers = restarted  # type: ignore[method-assign]
    return SignalException, ChildFailedError


def _report(error: Exception, job: Job) -> int:
    """Say how the job ended and return its exit status."""
    failures = getattr(error, "failures", {})
    if job.received or not failures:
        number = job.received[0] if job.received else getattr(error, "sigval", signal.SIGTERM)
        say(f"stopped by {signal.Signals(number).name}")
        return 128 + number
    rank, first = min(failures.items(), key=lambda item: item[1].timestamp)
    if first.exitcode < 0:
        hint = "; often that is the system, out of memory: see `dmesg`" if -first.exitcode == signal.SIGKILL else ""
        how = f"was killed by {first.signal_name()}{hint}"
    else:
        how = f"ended with exit status {first.exitcode}; its message is above"
    say(f"the job has failed: rank {rank} (local rank {first.local_rank}, process {first.pid}) {how}")
    return 1


def _is_in_foreground() -> bool:
    """Return whether a key of the terminal reaches this process."""
    try:
        with open("/dev/tty") as terminal:
            return os.tcgetpgrp(terminal.fileno()) == os.getpgrp()
    except OSError:
        return False


def say(text: str) -> None:
    """Print a line that is known for the launcher's; the terminal may be gone."""
    with contextlib.suppress(OSError):
        print(f"\n[launcher] {text}", file=sys.stderr, flush=True)  # a progress bar leaves its line open


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
