"""One line instead of a traceback of every rank where Ctrl-C ends a job."""

from __future__ import annotations

import os
import sys
from types import TracebackType


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
