"""SIGTERM, SIGINT and SIGHUP as a request that all ranks agree on, instead of a sudden end."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from types import FrameType, TracebackType
from typing import Any

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
# A preempted job is unfinished, and so is one whose terminal was closed; Ctrl-C is the user's wish.
EXIT_STATUS = {signal.SIGTERM: 143, signal.SIGINT: 0, signal.SIGHUP: 129}


class Interruption:
    """Remembers the first of these signals while its `with` block runs; the training loop decides when to stop.

    A signal can reach one rank alone, or the ranks at different steps, so no rank may act on its own: sum the ranks'
    `votes()` at a step boundary (`reduce_sum`) and stop everywhere when any is not 0. Use it in the main thread. A
    SIGHUP that is ignored, as under `nohup`, stays so.
    """

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self._previous: dict[signal.Signals, Any] = {}

    def votes(self) -> list[float]:
        """Return 1.0 for the signal this rank received and 0.0 for the others, in the order of `SIGNALS`."""
        return [float(self.received is number) for number in SIGNALS]

    @staticmethod
    def exit_status(votes: Sequence[float]) -> int:
        """Return what every rank exits with after a clean stop: 143 for SIGTERM, 129 for SIGHUP, 0 for Ctrl-C."""
        return max((EXIT_STATUS[number] for number, vote in zip(SIGNALS, votes) if vote), default=0)

    def __enter__(self) -> Interruption:
        for number in SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._previous[number] = signal.signal(number, self._remember)
        return self

    def __exit__(self, *exception: Any) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _remember(self, number: int, frame: FrameType | None) -> None:
        self.received = self.received or signal.Signals(number)


class OneLineAtInterrupt:
    """As `sys.excepthook`: when Ctrl-C ends the ranks, rank 0 prints one line instead of a traceback of every rank."""

    def __init__(self, rank: int, world_size: int) -> None:
        self._rank, self._world_size = rank, world_size
        self._previous = sys.excepthook

    def install(self) -> None:
        """Become the hook for uncaught exceptions."""
        self._previous, sys.excepthook = sys.excepthook, self

    def remove(self) -> None:
        """Give the hook back, unless another one has taken it since."""
        if sys.excepthook is self:
            sys.excepthook = self._previous

    def __call__(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        """Handle an uncaught exception."""
        if not issubclass(kind, KeyboardInterrupt):
            self._previous(kind, error, trace)
        elif self._rank == 0:
            mark = f"[rank 0/{self._world_size}]"
            print(f"\n{mark} interrupted in {_own_place(trace)}", file=sys.stderr, flush=True)


def _own_place(trace: TracebackType | None) -> str:
    """Return where the user's own code was: the last line that is in or below the folder of the script."""
    folder, place = os.path.dirname(os.path.abspath(sys.argv[0])) + os.sep, "the interpreter"
    while trace is not None:
        code = trace.tb_frame.f_code
        if os.path.abspath(code.co_filename).startswith(folder) and "site-packages" not in code.co_filename:
            place = f"{code.co_name}, {os.path.relpath(code.co_filename, folder)}:{trace.tb_lineno}"
        trace = trace.tb_next
    return place
