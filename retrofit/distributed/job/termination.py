"""Say why the launcher ends a rank, before it ends: because another one is missing.

A launcher ends all ranks by SIGTERM when one has gone. By default that ends a process in an instant, before it could
say where it was, and no Python handler runs while the main thread waits in a collective: a thread is told. A script's
own handler is left alone, and a signal that nothing is to be said about ends the process as it would have.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Any

from ..failure.watchdog import Watchdog

MAIN_S = 5.0  # for the main thread to end the process itself
LEFT = "has ended by SIGTERM"
_termination: Termination | None = None
_masks: list[set[int]] = []  # of the thread that forks
_guards_forks = False


def watch_sigterm(watchdog: Watchdog | None) -> None:
    """Say why SIGTERM comes, from now on, on the rank that `watchdog` watches; None: no longer."""
    global _termination, _guards_forks
    if _termination is not None:
        _termination.stop()
        _termination = None
    is_free = signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    if watchdog is not None and is_free and threading.current_thread() is threading.main_thread():
        _termination = Termination(watchdog)
    if not _guards_forks:
        os.register_at_fork(before=_before_fork, after_in_parent=_in_parent, after_in_child=_in_child)
        _guards_forks = True


class Termination:
    """The signal's way to a thread of this process; `stop` puts everything back."""

    def __init__(self, watchdog: Watchdog) -> None:
        self._watchdog, self._stopped, self._is_leaving = watchdog, False, False
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        self._thread = threading.Thread(target=self._wait, name="retrofit-sigterm", daemon=True)
        previous = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        if previous == -1:
            signal.signal(signal.SIGTERM, self._handle)
            self._thread.start()
        else:  # an event loop's
            signal.set_wakeup_fd(previous)
            self._stopped = True

    def stop(self) -> None:
        if self._stopped:
            return
        self._stopped = True
        self.release()
        os.write(self._write, b"\0")
        self._thread.join(MAIN_S)
        for end in (self._read, self._write):
            os.close(end)

    def release(self) -> None:
        """Let the signal end the process again."""
        if threading.current_thread() is threading.main_thread():
            signal.set_wakeup_fd(-1)
            if signal.getsignal(signal.SIGTERM) == self._handle:
                signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def _handle(self, number: int, frame: Any) -> None:
        if self._is_leaving:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    def _wait(self) -> None:
        while not self._stopped:
            if signal.SIGTERM not in os.read(self._read, 4096) or self._watchdog.is_reporting:
                continue
            if signal.getsignal(signal.SIGTERM) == self._handle and not self._stopped:
                self._say_why()
                self._leave()

    def _say_why(self) -> None:
        """Show this rank and end it where another one is missing, unless that one has failed and says so itself."""
        watchdog = self._watchdog
        silent = watchdog.silent_ranks()
        left = {watchdog.state_of(rank)["left"] for rank in range(watchdog.world_size)}
        end = watchdog.end()
        is_missing = bool(silent) or bool(left - {"", LEFT}) or end is not None
        if is_missing and not (end and end.is_error) and not watchdog.store_is_gone:
            watchdog.show_and_exit("the launcher ends this rank")

    def _leave(self) -> None:
        """Let the main thread end the process by the signal, or end it here: it may wait where it cannot."""
        self._watchdog.tell(left=LEFT)
        self._is_leaving = True
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(MAIN_S)
        os._exit(128 + signal.SIGTERM)


def _before_fork() -> None:
    """Hold the signal back: a child that got it before it has put the handler away would pass it on to its parent."""
    _masks.append(signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM}))


def _in_parent() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _masks.pop())


def _in_child() -> None:
    """A forked process, such as a loader's worker, ends by the signal; the pipe is its parent's."""
    global _termination
    if _termination is not None:
        _termination.release()
    _termination = None
    _in_parent()
