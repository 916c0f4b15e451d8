"""Start torchrun so that a signal or a failed rank ends the job in one clear line, with the status of the ranks.

  python launcher.py torch.distributed.run --nproc_per_node=2 --standalone train.py ARGUMENTS OF train.py
  python -m retrofit.distributed.launcher torch.distributed.launch --use_env ...     where the kit is installed

torchrun by itself ends with a traceback of its own after whatever the ranks said, with status 1, and kills ranks that
need more than 30 seconds to save. Here a signal is passed on to the ranks, which take the time that they need; the
second one is torchrun's to handle, the third one kills.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import runpy
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

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


if __name__ == "__main__":
    if sys.path[0] == os.path.dirname(os.path.abspath(sys.argv[0])):
        del sys.path[0]  # this folder, where a module may hide one of the library
    sys.exit(launch(sys.argv[1:]))
