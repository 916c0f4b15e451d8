"""A rank's process as its parent sees it: status, descendants, files, end."""

from __future__ import annotations

import os
import signal
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import psutil

STACK_LIMIT_S = 1.0
TERMINATE_S = 2.0
KILL_S = 10.0


class RankProcess:
    """A forked process that leads a session of its own, and what descends from it."""

    def __init__(self, rank: int, pid: int, folder: str) -> None:
        self.rank = rank
        self.pid = pid
        self.trace_file = Path(folder, f"rank{rank}.jsonl")
        self.stack_file = Path(folder, f"rank{rank}.stack")
        self.status: int | None = None  # as subprocess has it: -9 for SIGKILL; None while it runs or if we ended it
        self.is_running = True
        self.is_ended_by_us = False
        self.relatives: set[psutil.Process] = set()  # also those that have left the session, once seen

    def poll(self) -> bool:
        """Reap the process if it has ended, and return whether it runs."""
        if self.is_running:
            pid, wait_status = os.waitpid(self.pid, os.WNOHANG)
            if pid != 0:
                self.is_running = False
                if not self.is_ended_by_us:
                    # os.waitstatus_to_exitcode raises for a stopped process, which waitpid does not report here.
                    self.status = os.waitstatus_to_exitcode(wait_status)
        return self.is_running

    def is_gone(self) -> bool:
        """Return whether neither the process nor a relative that was seen is left; a zombie counts as gone."""
        return not self.poll() and not any(_is_alive(process) for process in self.relatives)

    def cpu_s(self) -> float:
        """Return the CPU seconds of the process, of its relatives, and of their children that have ended."""
        total = 0.0
        with suppress(psutil.Error):
            total += sum(_cpu_times(psutil.Process(self.pid)))
        for process in self.relatives:
            with suppress(psutil.Error):
                total += sum(_cpu_times(process))
        return total

    def trace_bytes(self) -> int:
        """Return the size of the trace file, 0 before it exists."""
        try:
            return self.trace_file.stat().st_size
        except OSError:
            return 0

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the process and to all relatives."""
        if self.poll():
            os.kill(self.pid, number)
            if number == signal.SIGKILL:
                with suppress(OSError):  # before it has become the leader of a group
                    os.killpg(self.pid, number)
        for process in self.relatives:
            with suppress(psutil.Error):  # psutil knows a process from a later one with the same id
                process.send_signal(number)


def find_relatives(ranks: Iterable[RankProcess]) -> None:
    """Add to every rank's relatives the processes in its session and its descendants. One pass over all processes."""
    ranks = list(ranks)
    children: dict[int, list[psutil.Process]] = defaultdict(list)
    sessions: dict[int, list[psutil.Process]] = defaultdict(list)
    for process in psutil.process_iter(["ppid"]):
        with suppress(OSError):
            sessions[os.getsid(process.pid)].append(process)
            children[process.info["ppid"]].append(process)
    for rank in ranks:
        session = sessions[rank.pid]
        if not rank.is_running and any(process.pid == rank.pid for process in session):
            session = []  # its id belongs to another process by now
        roots = [rank.pid] if rank.is_running else []
        roots += [process.pid for process in rank.relatives if _is_alive(process)]
        rank.relatives |= {process for process in session if process.pid != rank.pid}
        while roots:
            found = [process for process in children[roots.pop()] if process not in rank.relatives]
            rank.relatives |= set(found)
            roots += [process.pid for process in found]


def collect_stacks(ranks: Iterable[RankProcess]) -> Iterator[None]:
    """Have every live rank write its stacks, until the files stop growing or a second is over. Yields while waiting."""
    asked = [rank for rank in ranks if rank.poll()]
    for rank in asked:
        rank.is_ended_by_us = True  # a rank that has not come to its handler yet dies of the signal
        os.kill(rank.pid, signal.SIGUSR1)
    deadline = time.monotonic() + STACK_LIMIT_S
    sizes: list[int] = []
    changed = time.monotonic()
    while time.monotonic() < deadline:
        yield
        now, before = [_size(rank.stack_file) for rank in asked if rank.poll()], sizes
        if now != before:
            sizes, changed = now, time.monotonic()
        elif all(now) and time.monotonic() - changed > STACK_LIMIT_S / 10:
            return


def end_ranks(ranks: Iterable[RankProcess], patience_s: Mapping[signal.Signals, float]) -> Iterator[None]:
    """End the ranks and all their relatives with one signal after the other. Yields while waiting.

    Raises RuntimeError when a process is left after the last signal's patience.
    """
    ranks = list(ranks)
    for number, seconds in patience_s.items():
        deadline = time.monotonic() + seconds
        find_relatives(ranks)
        if all(rank.is_gone() for rank in ranks):
            return
        for rank in ranks:
            rank.send(number)
        while time.monotonic() < deadline and not all(rank.is_gone() for rank in ranks):
            yield
            if number == signal.SIGKILL:  # processes that were forked meanwhile
                find_relatives(ranks)
                for rank in ranks:
                    rank.send(number)
    left = [rank.pid for rank in ranks if rank.is_running]
    left += [process.pid for rank in ranks for process in rank.relatives if _is_alive(process)]
    if left:
        raise RuntimeError(
            f"processes {', '.join(map(str, left))} do not end, not even on SIGKILL; they are stuck in the kernel, "
            "most often in a driver or a network disk: look at them with `ps -o pid,stat,wchan:30,cmd`"
        )


def _is_alive(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _cpu_times(process: psutil.Process) -> tuple[float, float, float, float]:
    times = process.cpu_times()
    return times.user, times.system, times.children_user, times.children_system


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
