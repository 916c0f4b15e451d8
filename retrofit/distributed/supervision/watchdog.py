"""When the ranks of a job cannot continue, every rank shows where it is, one of them says why, and the job ends.

Each rank of a group of several has a thread that talks to the others through the group's store, never by collectives:
every second it says there what its main thread does, and looks whether a rank has raised the alarm. There are four
occasions for one:

- a collective ran out of time (`--dist_timeout`), or lost its connection to a rank that has gone;
- all ranks wait for each other for good, one of them in a collective that the others have passed (deadlock.py);
- the launcher ends this rank by SIGTERM, because another one has gone (termination.py).

Then every rank prints its stacks and its step, the one that raised the alarm names what is missing once all others have
shown themselves, and all end with status 1. However long a rank computes, validates, loads or downloads, nothing
happens unless a collective ran out of time. Over NCCL a collective of GPU tensors that runs out of time ends its
process before this message.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from torch.distributed.elastic.multiprocessing.errors import get_error_handler

from ..collective_calls import start_journal, stop_journal
from .board import ALARM, CONCLUDED, FIRST_FAILURE, PRESENT, ROLL_CALL, SHOWN, STATE, Board
from .deadlock import PATIENCE_S, is_slow, judge
from .missing_ranks import end_silent, explain
from .process_identity import is_alive
from .rank_state import RankState, current_step, stacks
from .run_lock import release_runs
from .termination import Termination

PERIOD_S = 1.0  # and 5 ms more for each rank: they all ask the same store
GRACE_S = 3.0  # for what other ranks' threads do, on top of their period
OUTPUT_S = 0.5  # for what another rank has printed to be on the screen before the last message

_watchdog: Watchdog | None = None


Counters = Callable[[], tuple[int, ...]]


def start_watchdog(store: Any, counters: Counters, rank: int, world_size: int, timeout_s: float) -> None:
    """Watch this process of a group of several until `stop_watchdog`; `store` and `counters` are the group's."""
    global _watchdog
    stop_watchdog()
    _watchdog = Watchdog(store, counters, rank, world_size, timeout_s)
    atexit.register(stop_watchdog)  # a thread must not be in the store when the interpreter goes


def stop_watchdog(*, left_together: bool = False) -> None:
    """End the thread, if there is one. Unless all ranks are done, tell the others that this one is."""
    global _watchdog
    if _watchdog is not None:
        atexit.unregister(stop_watchdog)
        _watchdog.stop(left_together)
    _watchdog = None


def own_watchdog() -> Watchdog | None:
    """Return this process's watchdog; None outside a group of several that `setup_distributed` has joined."""
    return _watchdog


class Watchdog:
    """The thread of one rank and what it shares with the main thread."""

    def __init__(self, store: Any, counters: Counters, rank: int, world_size: int, timeout_s: float) -> None:
        self.rank, self.world_size, self.mark = rank, world_size, f"[rank {rank}/{world_size}]"
        self.period_s = min(PERIOD_S + world_size / 200, max(0.1, timeout_s / 20))
        self.board = Board(store)
        self.exit_note = ""
        self.has_said_why = False  # that another rank has failed, before this one noticed by itself
        self._state = RankState(rank, start_journal(counters))
        self._stopped, self._shown = threading.Event(), threading.Lock()
        self._slow, self._suspected = (rank + 1) % world_size, ""
        self._before: dict[int, Any] = {}
        self._termination = Termination()
        self.board.set(STATE.format(rank=rank), self._state.look())
        self._thread = threading.Thread(target=self._watch, name="retrofit-watchdog", daemon=True)
        self._thread.start()

    def stop(self, left_together: bool = False) -> None:
        self._stopped.set()
        self._termination.wake()
        if self._thread is not threading.current_thread():
            self._thread.join(GRACE_S)
        self._termination.restore()
        if not left_together:  # or the store may be gone by now, and torch says so
            left = {**self._state.look(), "left": self.exit_note or _how_it_ends(), "where": "", "blocked_s": 0.0}
            self.board.set(STATE.format(rank=self.rank), left)
        stop_journal()

    # ---- in the main thread ---------------------------------------------------------------------------

    def begin_report(self) -> None:
        """Leave it to the main thread to end this process: it has an error to report."""
        self._termination.ignore()

    def failed_first(self) -> int | None:
        """Return the rank that has failed by an error of its own before any other has, None if none has."""
        return self.board.get(FIRST_FAILURE)

    def alarmed(self) -> bool:
        """Return whether a rank has noticed that the job cannot continue, or no rank can be asked."""
        return self.board.gone or self.board.add(ALARM, 0) > 0

    def end_with(self, lines: Sequence[str], where: str) -> None:
        """Raise the alarm, or join in it: show `lines`, of an error `where` this rank waited for another one.

        Returns when every rank has shown itself and one has said why.
        """
        self._state.known = {"where": where, "blocked_s": PATIENCE_S}
        number = self.board.add(ALARM)
        self._show(lines)
        if number <= 1:
            self._conclude("")
        else:
            self._wait_for_conclusion()

    # ---- in the thread --------------------------------------------------------------------------------

    def _watch(self) -> None:
        while True:
            terminated = self._termination.wait(self.period_s)
            if self._stopped.is_set():
                return
            if not self.board.gone:
                self._look_around()
            if terminated:
                self._leave()

    def _look_around(self) -> None:
        state = self._state.look()
        self.board.set(STATE.format(rank=self.rank), state)
        if self.board.add(ROLL_CALL, 0):
            self.board.set(PRESENT.format(rank=self.rank))
        if self.board.add(ALARM, 0):
            self._show_and_end("the job cannot continue")
        first = self.failed_first() if state["blocked_s"] >= PATIENCE_S else None
        if first is not None and first != self.rank:  # it takes its time to end, and keeps its connections until then
            self.has_said_why = True
            self.print([f"stopped: rank {first} failed first, see its message (its process has not ended yet)"])
            if self.rank == 0:
                time.sleep(GRACE_S)  # for the others to find out the same: the store may be this process's
            _end()
        reason = self._deadlock(state)
        if reason and self.board.add(ALARM) == 1:
            self._show_and_end("the ranks wait for each other", reason)

    def _deadlock(self, own: dict[str, Any]) -> str:
        """Return why no rank can continue, once two looks at all of them have said the same."""
        if own["blocked_s"] < PATIENCE_S:
            self._before = {}
            return ""
        states: list[Any] = []
        for step in range(self.world_size):  # the one that was slow last time first
            rank = (self._slow + step) % self.world_size
            states.append(own if rank == self.rank else self.board.get(STATE.format(rank=rank)))
            if is_slow(states[-1]):
                self._slow, self._before = rank, {}
                return ""
        states.sort(key=lambda state: state["rank"])
        before, self._before = self._before, {state["rank"]: state for state in states}
        if not before or any(not _confirmed(before[state["rank"]], state) for state in states):
            if before and any(before[state["rank"]]["beat"] == state["beat"] for state in states):
                self._before = before  # one has not looked again yet
            return ""
        return judge(states)

    def _leave(self) -> None:
        """End by SIGTERM, as without this thread; but say so where a rank is missing, which is why it was sent."""
        self.board.add(ROLL_CALL)
        self.board.set(PRESENT.format(rank=self.rank))
        deadline = time.monotonic() + self.period_s + GRACE_S
        missing = True
        while missing and time.monotonic() < deadline and self.failed_first() is None and not self.board.gone:
            absent = [rank for rank in range(self.world_size) if not self._is_present(rank)]
            missing = bool(absent)
            if self.board.add(ALARM, 0) or (missing and all(self._is_gone(rank) for rank in absent)):
                break
            time.sleep(0.05)
        if missing and self.failed_first() is None and not self.board.gone:
            number = self.board.add(ALARM)
            self._show_and_end("the launcher ends this rank", None if number == 1 else "")
        self._termination.leave_now()

    def _is_present(self, rank: int) -> bool:
        return rank == self.rank or self.board.get(PRESENT.format(rank=rank)) is not None

    def _show_and_end(self, headline: str, reason: str | None = "") -> None:
        """Show this rank and end it. `reason`: None or a text where this one says why, "" where another one does."""
        self._show([f"{headline}; this rank is in {current_step()}, here:", *stacks()])
        if reason == "":
            self._wait_for_conclusion()
        else:
            self._conclude(reason or "")
        _end()

    # ---- in either ------------------------------------------------------------------------------------

    def _show(self, lines: Sequence[str]) -> None:
        if self._shown.acquire(blocking=False):
            self.print(lines)
            self.board.set(STATE.format(rank=self.rank), self._state.look())
            self.board.set(SHOWN.format(rank=self.rank))

    def _conclude(self, reason: str) -> None:
        """Print why the job ends, last of all ranks, and have the launcher repeat it."""
        silent = self._wait_until_shown()
        time.sleep(OUTPUT_S)
        first = self.failed_first()
        states = {rank: self.board.get(STATE.format(rank=rank)) for rank in range(self.world_size)}
        states[self.rank] = states[self.rank] or self._state.look()
        text = reason or explain(states, silent, self.rank, self.board.gone)
        if first is not None and first != self.rank:
            text = f"rank {first} failed first, see its message"
        text += "".join(f"\n{line}" for line in end_silent(states, silent))
        self.print(text.splitlines())
        try:
            raise RuntimeError(text)
        except RuntimeError as error:
            get_error_handler().record_exception(error)  # for torchrun's report
        self.board.set(CONCLUDED)

    def _wait_until_shown(self) -> list[int]:
        """Wait until every rank has shown where it is; return those that did not."""
        deadline = time.monotonic() + self.period_s + GRACE_S
        silent = [rank for rank in range(self.world_size) if rank != self.rank]
        while silent and not self.board.gone and time.monotonic() < deadline:
            silent = [rank for rank in silent if self.board.get(SHOWN.format(rank=rank)) is None]
            if all(self._is_gone(rank) for rank in silent):
                break
            time.sleep(0.05)
        return silent

    def _is_gone(self, rank: int) -> bool:
        state = self.board.get(STATE.format(rank=rank))
        return bool(state and (state["left"] or is_alive(state["process"]) is False))

    def _wait_for_conclusion(self) -> None:
        deadline = time.monotonic() + 2 * (self.period_s + GRACE_S) + OUTPUT_S
        while not self.board.gone and self.board.get(CONCLUDED) is None and time.monotonic() < deadline:
            time.sleep(0.05)

    def print(self, lines: Sequence[str]) -> None:
        if lines:
            text = "\n".join(f"{self.mark} {line}" for line in lines)
            print(f"\n{text}", file=sys.stderr, flush=True)  # a progress bar leaves its line open


def _end() -> None:
    """End this process while its main thread waits for good."""
    release_runs()
    sys.stdout.flush()
    os._exit(1)


def _confirmed(before: dict[str, Any], now: dict[str, Any]) -> bool:
    same = all(before[name] == now[name] for name in ("finished", "open", "begun", "left"))
    return same and (bool(now["left"]) or before["beat"] != now["beat"])


def _how_it_ends() -> str:
    error = getattr(sys, "last_value", None)
    return f"ended with {type(error).__name__}: {error}" if error is not None else "ended its program"
