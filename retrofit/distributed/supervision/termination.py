"""Notice SIGTERM in a thread, also while the main thread waits in a collective, where no Python handler can run.

A launcher ends all ranks when one has gone. By default that ends a process in an instant, before it could say where
it was. A script's own handler is left alone, and a signal that nothing is to be said about ends the process as it
would have.
"""

from __future__ import annotations

import os
import select
import signal
import threading
import time
from typing import Any

LIMIT_S = 20.0  # after which the main thread ends the process whatever the watchdog does; torchrun kills after 30 s
MAIN_S = 5.0  # for the main thread to end the process itself
STATUS = 128 + signal.SIGTERM
_owner: Termination | None = None
_masks: list[set[int]] = []  # of the thread that forks


class Termination:
    """The signal's way to the thread; `restore` puts everything back."""

    def __init__(self) -> None:
        global _owner
        self._read, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC) if hasattr(os, "pipe2") else os.pipe()
        os.set_blocking(self._write, False)
        self._pid, self._leaves = os.getpid(), threading.Event()
        self._takes, self.is_ignored = False, False
        if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            previous = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
            if previous != -1:  # an event loop's
                signal.set_wakeup_fd(previous)
                return
            signal.signal(signal.SIGTERM, self._handle)
            self._takes, _owner = True, self

    def wait(self, seconds: float) -> bool:
        """Wait for the signal, for that long at most; return whether it came and is not the script's own matter."""
        ready, _, _ = select.select([self._read], [], [], seconds)
        numbers = os.read(self._read, 4096) if ready else b""
        own = signal.getsignal(signal.SIGTERM) == self._handle and not self.is_ignored
        return signal.SIGTERM in numbers and own

    def wake(self) -> None:
        os.write(self._write, b"\0")

    def ignore(self) -> None:
        """Let the signal pass from now on: the main thread has an error to report, and ends then."""
        self.is_ignored = True

    def leave_now(self) -> None:
        """Let the main thread end the process by the signal, or end it here: it may wait where it cannot."""
        self._leaves.set()
        time.sleep(MAIN_S)
        os._exit(STATUS)

    def restore(self) -> None:
        global _owner
        self._leaves.set()
        if self._takes and threading.current_thread() is threading.main_thread():
            signal.set_wakeup_fd(-1)
            if signal.getsignal(signal.SIGTERM) == self._handle:
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
            self._takes = False
        if _owner is self:
            _owner = None
        for end in (self._read, self._write):
            os.close(end)

    def _handle(self, number: int, frame: Any) -> None:
        if os.getpid() == self._pid:
            if self.is_ignored:
                return
            self._leaves.wait(LIMIT_S)
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)


def _before_fork() -> None:
    """Hold the signal back: a child that got it before it has put the handler away would pass it on to its parent."""
    if _owner is not None:
        _masks.append(signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM}))


def _in_parent() -> None:
    if _masks:
        signal.pthread_sigmask(signal.SIG_SETMASK, _masks.pop())


def _in_child() -> None:
    """A forked process, such as a loader's worker, ends by the signal; the pipe is its parent's."""
    if _owner is not None and _owner._takes:
        signal.set_wakeup_fd(-1)
        if signal.getsignal(signal.SIGTERM) == _owner._handle:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _in_parent()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_in_parent, after_in_child=_in_child)
