"""SIGTERM and SIGINT as a request that all ranks agree on, instead of a sudden end."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGTERM, signal.SIGINT)
EXIT_STATUS = {signal.SIGTERM: 143, signal.SIGINT: 0}  # a preempted job is unfinished; Ctrl-C is the user's wish


class Interruption:
    """Remembers the first SIGTERM or SIGINT while its `with` block runs; the training loop decides when to stop.

    A signal can reach one rank alone, or the ranks at different steps, so no rank may act on its own: sum the ranks'
    `votes()` at a step boundary (`reduce_sum`) and stop everywhere when any is not 0. Use it in the main thread.
    """

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self._previous: dict[signal.Signals, Any] = {}

    def votes(self) -> list[float]:
        """Return 1.0 for the signal this rank received and 0.0 for the other, in the order of `SIGNALS`."""
        return [float(self.received is number) for number in SIGNALS]

    @staticmethod
    def exit_status(votes: Sequence[float]) -> int:
        """Return what every rank exits with after a clean stop: 143 if any rank got SIGTERM, 0 for Ctrl-C."""
        return next((EXIT_STATUS[number] for number, vote in zip(SIGNALS, votes) if vote), 0)

    def __enter__(self) -> Interruption:
        for number in SIGNALS:
            self._previous[number] = signal.signal(number, self._remember)
        return self

    def __exit__(self, *exception: Any) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _remember(self, number: int, frame: FrameType | None) -> None:
        self.received = self.received or signal.Signals(number)
