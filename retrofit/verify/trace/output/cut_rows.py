"""Rows that a script cuts off the end of a tensor while it evaluates, as those that fill up the last batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from retrofit.verify.trace.events import Record, RowsCut

MAX_EVENTS = 500  # per process
SLICE = "aten::slice"


class CutRows:
    """Records RowsCut where `is_watched()`: in an evaluation, and not inside a model."""

    def __init__(self, record: Record) -> None:
        self._record = record
        self.is_watched: Callable[[], bool] = lambda: False
        self._number = 0

    def watched(self, func: Any, run: Callable[[tuple, dict], Any]) -> Callable[[tuple, dict], Any]:
        """Return `run`, with a look at the arguments first where `func` takes a part of a tensor."""
        if func._schema.name != SLICE:
            return run

        def watched(args: tuple, kwargs: dict) -> Any:
            if self._number < MAX_EVENTS and self.is_watched():
                self._look(*args, **kwargs)
            return run(args, kwargs)

        return watched

    def _look(self, tensor: Any, dim: int = 0, start: Any = None, end: Any = None, step: Any = 1) -> None:
        is_first_part = dim == 0 and not start and step == 1 and isinstance(end, int) and tensor.dim() > 0
        size = tensor.shape[0] if is_first_part else 0
        kept = min(end + size if end < 0 else end, size) if is_first_part else 0
        if 0 <= kept < size:
            self._number += 1
            self._record(RowsCut(size, kept))
