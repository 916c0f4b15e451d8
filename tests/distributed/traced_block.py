"""A block of a test under the operator trace, with its events in a list."""

from __future__ import annotations

from contextlib import contextmanager

import torch

from retrofit.verify.trace.computation.numbers.float64 import use_float64
from retrofit.verify.trace.computation.operators import OperatorTrace

SEEDS = [101, 202, 303, 404, 505, 606]  # of the rows of a batch


class Events(list):
    """A list of events that can be given as `record`."""

    def __call__(self, event):
        self.append(event)

    def of(self, kind):
        return [event for event in self if isinstance(event, kind)]


@contextmanager
def in_float64():
    undo = use_float64()
    try:
        yield
    finally:
        undo()


@contextmanager
def controlled_block():
    """Run the block in a controlled trace, in float64, with six rows in hand; give the events."""
    events = Events()
    torch.manual_seed(0)
    with in_float64(), OperatorTrace(events, True, lambda: SEEDS):
        yield events
