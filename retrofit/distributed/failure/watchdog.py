"""The end of a job in which a rank fails, vanishes or waits in vain: one readable report, exit status 1 on every rank.

Each rank of several has a thread that talks to the others through the group's store, never by collectives. Every
second it says there what its main thread does, and looks whether a rank has found that the job is at its end:

- by an error of its own: that rank prints its traceback, marked `[rank r/w]`, and the others one line each;
- by a collective that ran out of time (`--dist_timeout`) or lost its connection, or by a deadlock (deadlock.py): every
  rank prints its stack and its step, and then that one says which rank is missing.

Over NCCL a collective of GPU tensors that runs out of time ends its process before this report.
"""

from __future__ import annotations

import atexit
import json
import os
import re
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from types import TracebackType
from typing import Any, NamedTuple

import torch
from torch.distributed.elastic.multiprocessing.errors import get_error_handler

from .collective_calls import start_journal, stop_journal
from .deadlock import PATIENCE_S, UNKNOWN, State, explain, is_slow, judge, place_of

PERIOD_S = 1.0  # and 5 ms more for each rank: they all ask the same store
GRACE_S = 3.0  # for what other ranks' threads do, on top of their period
LAUNCHER_S = 1.0  # for torchrun to find the rank that failed first; of several that it finds at once it names any
OUTPUT_S = 0.5  # for what another rank has printed to be on the screen before the last message
# Where a main thread is that waits for another rank in torch's own code; a loader or a download is another matter.
WAITING_MODULES = ("torch.distributed", "torch.nn.parallel", "torch.autograd", "torch._tensor")
NEWS_S = 2.0  # between the error of one rank and the loss of its connections on another: milliseconds
# What gloo, NCCL and the store say on a rank that has waited for another one in vain.
WAITED_IN_VAIN = re.compile(
    r"Timed out waiting \d+ ?ms|monitoredBarrier|collective operation timeout|[Ww]ait timeout after \d+ ?ms|"
    r"Application timeout caused pair closure|was called by rank \d+, but not by rank|"
    r"onnection (closed|reset)|Broken pipe|remote process exited|communicator was aborted"
)
PEER_FAILED = re.compile(r"rank \d+ failed: |\w+ failed on rank \d+: ")  # what the runtime says of another rank's error


@dataclass
class JobHooks:
    """What the production parts of the runtime add where they are imported (`job/`)."""

    own_store: Callable[..., Any] = lambda *place: None  # the store to meet in, None for torch's own choice
    identity: Callable[[], Any] = lambda: {"pid": os.getpid(), "host": socket.gethostname()}
    watched: Callable[[Any], Any] = lambda watchdog: None  # a watchdog has started; at its end: None
    reported: Callable[[str], Any] = lambda text: None  # told what this rank has printed of the job's end
    end_silent: Callable[[Sequence[State]], list[str]] = lambda states: []  # returns what to say of these ranks
    leave: Callable[[], Any] = lambda: None  # before this process leaves its job, in whatever way


JOB_HOOKS = JobHooks()
_step = "what precedes the first step"


def begin_step(step: str) -> None:
    """Note which step this rank is in, as in "step 7 of epoch 2": a rank that hangs says it."""
    global _step
    _step = step


def place_of_error(error: BaseException) -> str:
    """Return where in the script an error was raised."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    return place_of(frames[-1]) if frames else "code without a traceback"


def record_error(error: Exception) -> None:
    """Leave an error for torchrun's report, which shows what is being handled; nothing happens without torchrun."""
    try:
        raise error
    except Exception:
        get_error_handler().record_exception(error)


class End(NamedTuple):
    """The end of the job: the rank that was the first to find it, and whether by an error of its own."""

    rank: int
    is_error: bool


class Watchdog:
    """The thread of one rank and what it shares with the main thread."""

    def __init__(self, store: Any, counters: Callable[[], tuple[int, ...]], rank: int, world_size: int) -> None:
        self.rank, self.world_size, self.left, self.is_reporting = rank, world_size, "", False
        self.period_s = PERIOD_S + world_size / 200
        # A connection of its own: a main thread that waits in the store would keep this one out.
        self._store, self.store_is_gone = store.clone() if hasattr(store, "clone") else store, False
        self._store.set_timeout(timedelta(seconds=PATIENCE_S))
        self._process, self._journal = JOB_HOOKS.identity(), start_journal(counters)
        self._seen: Any = None  # what has not changed since
        self._since = 0.0
        self._waited: dict[str, Any] = {}  # told in place of what can be seen, once the main thread has an error
        self._stopped, self._said = threading.Event(), threading.Lock()
        self._previous_hook, sys.excepthook = sys.excepthook, self._report_uncaught
        self.tell()
        self._thread = threading.Thread(target=self._watch, name="retrofit-watchdog", daemon=True)
        self._thread.start()

    def stop(self, left_together: bool) -> None:
        self._stopped.set()
        if self._thread is not threading.current_thread():
            self._thread.join(GRACE_S)
        if sys.excepthook == self._report_uncaught:
            sys.excepthook = self._previous_hook
        if not left_together:  # or the store may be gone by now, and torch says so
            error = getattr(sys, "last_value", None)
            self.left = self.left or f"has ended {f'with {type(error).__name__}: {error}' if error else 'its program'}"
            self.tell(left=self.left, where="", waits_s=0.0)
        stop_journal()

    # What the ranks know of each other, through the store

    def _ask(self, operation: str, key: str, *values: str) -> Any:
        """Return the store's answer, None once it is gone: it is in rank 0 or the launcher, which may have died."""
        try:
            return None if self.store_is_gone else getattr(self._store, operation)(f"retrofit/{key}", *values)
        except Exception:
            self.store_is_gone = True
        return None

    def _read(self, key: str) -> Any:
        text = self._ask("compare_set", key, "null", "null")  # null where there is none; torch 2.1 has no Store.check
        return None if text is None else json.loads(text)

    def tell(self, **known: Any) -> State:
        """Look at this process's main thread, from whichever thread, and tell the other ranks; return what is told."""
        now, begun = time.monotonic(), self._journal.begun()  # before the call: it is noted before it begins
        call, finished = self._journal.open, self._journal.finished
        frame = sys._current_frames()[threading.main_thread().ident or 0]
        if (seen := (id(frame), frame.f_lasti, begun, finished)) != self._seen:
            self._seen, self._since = seen, now
        # On a GPU the thread waits, and computes, wherever it needs a result; what it waits for has been begun.
        has_begun = any(begun) and torch.cuda.is_available() and torch.cuda.is_initialized()
        waits = has_begun or frame.f_globals.get("__name__", "").startswith(WAITING_MODULES)
        since = self._journal.opened_at if call else self._since if waits else now
        state = {"rank": self.rank, "process": self._process, "beat": now, "left": "", "step": _step}
        state |= {"where": place_of(frame), "finished": finished, "calls": list(self._journal.calls), "begun": begun}
        state |= {"waits_s": now - since, **self._waited, **known}
        self._ask("set", f"state/{self.rank}", json.dumps(state))
        return state

    def state_of(self, rank: int) -> State:
        return self._read(f"state/{rank}") or {"rank": rank, **UNKNOWN}

    def silent_ranks(self) -> list[int]:
        """Wait until every other rank has said something or has left; return those that do neither for long."""
        deadline = time.monotonic() + self.period_s + GRACE_S
        beats = {rank: self.state_of(rank)["beat"] for rank in range(self.world_size) if rank != self.rank}
        while beats and time.monotonic() < deadline and not self.store_is_gone:
            self.tell()
            time.sleep(0.05)
            states = [self.state_of(rank) for rank in beats]
            beats = {s["rank"]: s["beat"] for s in states if not s["left"] and s["beat"] == beats[s["rank"]]}
        return list(beats)

    def end(self, within_s: float = 0.0) -> End | None:
        """Return the end of the job, once a rank has found it within that time."""
        deadline = time.monotonic() + within_s
        while (found := self._read("end")) is None and time.monotonic() < deadline and not self.store_is_gone:
            time.sleep(0.05)
        return None if found is None else End(*found)

    def _claim_end(self, is_error: bool) -> End:
        """Return the end of the job, which is from this rank unless another one was faster."""
        found = self._ask("compare_set", "end", "", json.dumps([self.rank, is_error]))
        return End(self.rank, is_error) if found is None else End(*json.loads(found))

    # The thread

    def _watch(self) -> None:
        while not self._stopped.wait(self.period_s) and not self.store_is_gone:
            waits = self.tell()["waits_s"] >= PATIENCE_S
            end = self.end()
            if end and not end.is_error:
                self.show_and_exit("the job cannot continue")
            elif end and waits and end.rank != self.rank:  # it keeps its connections until its process ends
                self._say_once(
                    [f"stopped: rank {end.rank} failed first, see its message (its process has not ended yet)"]
                )
                time.sleep(GRACE_S if self.rank == 0 else 0.0)  # for the others to find out: the store may be here
                _end_process()
            elif waits and (reason := self._deadlock()):
                self.show_and_exit("the ranks wait for each other", reason)

    def _deadlock(self) -> str:
        """Return why no rank can continue, "" while one can."""
        states: list[State] = []
        for rank in range(self.world_size):
            states.append(self.state_of(rank))
            if is_slow(states[-1]):
                return ""
        return judge(states)

    def show_and_exit(self, headline: str, reason: str = "") -> None:
        """End this process, whose main thread waits for good; another thread calls this."""
        stack = traceback.format_stack(sys._current_frames()[threading.main_thread().ident or 0])
        headline = f"{headline}; this rank is in {self.tell()['step']}, here:"
        self._end_job([headline, *"".join(stack).splitlines()], reason)
        _end_process()

    # In either thread

    def _end_job(self, lines: Sequence[str], reason: str = "") -> None:
        """Show `lines` and return when one rank, the first to come here, has said why the job ends, or `reason`."""
        if self._say_once(lines) and self._claim_end(False) == (self.rank, False):
            self._conclude(reason)
        deadline = time.monotonic() + 2 * (self.period_s + GRACE_S) + OUTPUT_S
        while not self.store_is_gone and not self._read("concluded") and time.monotonic() < deadline:
            self.tell()
            time.sleep(0.05)

    def _conclude(self, reason: str) -> None:
        """Say why the job ends, after all other ranks have shown themselves, and have the launcher repeat it."""
        silent = self.silent_ranks()
        time.sleep(OUTPUT_S)
        own = self.tell()
        states = [own if rank == self.rank else self.state_of(rank) for rank in range(self.world_size)]
        text = reason or judge(states) or explain(states, own, silent)
        if self.store_is_gone:
            gone = "the store of the group is gone, and with it the process that has it: rank 0, or the launcher"
            text = f"rank {self.rank} waited in {own['where']}; {gone}"
        lines = [*text.splitlines(), *JOB_HOOKS.end_silent([states[rank] for rank in silent])]
        self._say(lines)
        record_error(RuntimeError("\n".join(lines)))
        self._ask("set", "concluded", "true")

    def _say(self, lines: Sequence[str]) -> None:
        text = "\n".join(f"[rank {self.rank}/{self.world_size}] {line}" for line in lines)
        print(f"\n{text}", file=sys.stderr, flush=True)  # a progress bar leaves its line open
        JOB_HOOKS.reported(text)

    def _say_once(self, lines: Sequence[str]) -> bool:
        """Print what one of this process's threads shall print; return whether it was this one."""
        is_first = self._said.acquire(blocking=False)
        if is_first:
            self._say(lines)
        return is_first

    # In the main thread, which has an error

    def _report_uncaught(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        """Report an uncaught error, as `sys.excepthook`; Ctrl-C is one line of rank 0."""
        if isinstance(error, KeyboardInterrupt):
            if self.rank == 0:
                self._say([f"interrupted in {place_of_error(error.with_traceback(trace))}"])
        elif isinstance(error, Exception) and _watchdog is self:  # not once it has stopped
            self.report(error.with_traceback(trace))
        else:
            self._previous_hook(kind, error, trace)

    def report(self, error: Exception) -> None:
        """Print this rank's part of the story, and leave it for torchrun's report if it is the cause."""
        lines = "".join(traceback.format_exception(type(error), error, error.__traceback__)).splitlines()
        if getattr(error, "is_explained", False) is True:
            lines = [f"{type(error).__name__}: {error}"]
        self.is_reporting, self.left = True, f"has failed with {type(error).__name__}"
        if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # which torchrun sends when another rank has gone
        waited = isinstance(error, RuntimeError) and WAITED_IN_VAIN.search(str(error)) is not None
        end = self.end(NEWS_S if waited or PEER_FAILED.match(str(error)) else 0.0)
        if waited and not (end and end.is_error):
            self._waited = {"where": place_of_error(error), "waits_s": PATIENCE_S}
            self._end_job([f"waited in vain for another rank, in {self.tell()['step']}:", *lines])
            return
        end = end or self._claim_end(True)
        if end.is_error and end.rank != self.rank:
            self._say_once([f"stopped: rank {end.rank} failed first, see its message ({type(error).__name__} here)"])
            time.sleep(LAUNCHER_S if "TORCHELASTIC_RUN_ID" in os.environ else 0.0)
        else:
            record_error(error)
            self._say(lines)


def _end_process() -> None:
    """End this process while its main thread waits for good."""
    JOB_HOOKS.leave()
    sys.stdout.flush()
    os._exit(1)


_watchdog: Watchdog | None = None


def start_watchdog(store: Any, counters: Callable[[], tuple[int, ...]], rank: int, world_size: int) -> None:
    """Watch this process of a group of several until `stop_watchdog`; `store` and `counters` are the group's."""
    global _watchdog
    stop_watchdog()
    _watchdog = Watchdog(store, counters, rank, world_size)
    JOB_HOOKS.watched(_watchdog)
    atexit.register(stop_watchdog)  # a thread must not be in the store when the interpreter goes


def stop_watchdog(*, left_together: bool = False) -> None:
    """End the thread, if there is one. Unless all ranks are done, tell the others that this one is."""
    global _watchdog
    if _watchdog is not None:
        atexit.unregister(stop_watchdog)
        JOB_HOOKS.watched(None)
        _watchdog.stop(left_together)
    _watchdog = None


def own_watchdog() -> Watchdog | None:
    """Return this process's watchdog; None outside a group of several that `setup_distributed` has joined."""
    return _watchdog
