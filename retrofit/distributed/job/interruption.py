"""SIGTERM, SIGINT and SIGHUP as a request that all ranks agree on, instead of a sudden end."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from types import FrameType
from typing import Any

from ..collectives import reduce_sum

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
# A preempted job is unfinished, and so is one whose terminal was closed; Ctrl-C is the user's wish.
EXIT_STATUS = {signal.SIGTERM: 143, signal.SIGINT: 0, signal.SIGHUP: 129}


class Interruption:
    """Remembers the first of these signals while its `with` block runs; the training loop decides when to stop.

    A signal can reach one rank alone, or the ranks at different steps, so no rank may act on its own: ask for
    `agreed_status()` at a step boundary, and stop where it is not None. Use it in the main thread. A SIGHUP that is
    ignored, as under `nohup`, stays so.
    """

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self._previous: dict[signal.Signals, Any] = {}

    def agreed_status(self) -> int | None:
        """Return what every rank exits with after a clean stop, None while no rank has received a signal.

        143 for SIGTERM, 129 for SIGHUP, 0 for Ctrl-C, the largest of them. Collective: every rank.
        """
        return self.status_of(reduce_sum(self.votes()))

    def votes(self) -> list[float]:
        """Return this rank's part of `agreed_status`, to be summed over the ranks together with other numbers."""
        return [float(self.received is number) for number in SIGNALS]

    def status_of(self, votes: Sequence[float]) -> int | None:
        """Return what `agreed_status` does, of the sums over ranks of their `votes()`."""
        return max((EXIT_STATUS[number] for number, vote in zip(SIGNALS, votes) if vote), default=None)

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
