"""Messages between ranks in the group's store, from threads that must not run collectives."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

from .restart_store import ABSENT, peek

PREFIX = "retrofit/board"
ALARM = "alarm"  # how many ranks have noticed that the job cannot continue
ROLL_CALL = "roll_call"
STATE, SHOWN, PRESENT = "state/{rank}", "shown/{rank}", "present/{rank}"
CONCLUDED = "concluded"
FIRST_FAILURE, FAILURES = "first_failure", "failures"
PATIENCE_S = 5.0  # for an answer of the store


class Board:
    """The part of the store for this. No method raises: once the store cannot be reached, `gone` is True."""

    def __init__(self, store: Any) -> None:
        # A connection of its own: a main thread that waits in the store would keep this one out.
        self._store = store.clone() if hasattr(store, "clone") else store
        self.gone = False
        if hasattr(self._store, "set_timeout"):
            self._store.set_timeout(timedelta(seconds=PATIENCE_S))

    def add(self, key: str, number: int = 1) -> int:
        """Add to a counter and return its new value, 0 without a store."""
        return self._ask(lambda: self._store.add(f"{PREFIX}/{key}", number)) or 0

    def set(self, key: str, value: Any = "") -> None:
        self._ask(lambda: self._store.set(f"{PREFIX}/{key}", json.dumps(value)))

    def get(self, key: str) -> Any:
        """Return a value, None if there is none."""
        text = self._ask(lambda: peek(self._store, f"{PREFIX}/{key}"))
        return None if text in (None, ABSENT) else json.loads(text)

    def claim_first_failure(self, rank: int) -> bool:
        """Return whether this rank is the first to fail by an error of its own; from then on the others know."""
        if self.add(FAILURES) == 1:
            self.set(FIRST_FAILURE, rank)
            return True
        return self.gone

    def _ask(self, question: Any) -> Any:
        if self.gone:
            return None
        try:
            return question()
        except Exception:  # it is in rank 0 or in the launcher, and that process may be the one that died
            self.gone = True
            return None
