"""A rank that fails ends the job: one readable traceback, exit status 1 everywhere, no rank left waiting."""

from __future__ import annotations

import functools
import re
import sys
import time
import traceback
from collections.abc import Callable
from types import TracebackType
from typing import Any, TypeVar

from torch.distributed.elastic.multiprocessing.errors import get_error_handler

from ..process_group import after_joining, get_rank, get_world_size, is_distributed
from ..supervision.rank_state import current_step, place_of_error
from ..supervision.watchdog import Watchdog, own_watchdog
from .rank_logging import keep_in_rank_log

F = TypeVar("F", bound=Callable[..., Any])
# What a rank's own collective says when its peer has gone (gloo, nccl): the cause is in the peer's message.
LOST_CONNECTION = re.compile(r"onnection (closed|reset)|Broken pipe|remote process exited|communicator was aborted")
# What gloo, NCCL, the store and require_every_rank say; a loader or a download that times out is another matter.
TIMED_OUT = re.compile(
    r"Timed out waiting \d+ ?ms|monitoredBarrier|collective operation timeout|[Ww]ait timeout after \d+ ?ms|"
    r"Application timeout caused pair closure|was called by rank \d+, but not by rank"
)
# What raise_together and answer_of_main say on the ranks that have not failed.
PEER_FAILED = re.compile(r"rank \d+ failed: |\w+ failed on rank \d+: ")
NEWS_S = 2.0  # between the error of one rank and the loss of its connections on another: milliseconds


def report_failure(main: F) -> F:
    """Decorate `main` so that an error on any rank is reported once, by the rank that failed first.

    That rank prints its traceback, each line marked `[rank r/w]`, and leaves it for torchrun's report; the ranks that
    broke off because of it print one line. Where a collective waits in vain every rank shows its stack and its step,
    and one names what is missing (watchdog.py). All exit with status 1. In a single process nothing changes.

    An error whose class has `is_explained = True` is one line without a traceback, in a single process too: its message
    says what was wrong and what to do.
    """

    @functools.wraps(main)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        try:
            return main(*args, **kwargs)
        except SystemExit as end:
            _note_exit(end)
            raise
        except Exception as error:
            if not _is_one_of_several():
                get_error_handler().record_exception(error)  # for torchrun's report; does nothing without torchrun
                if not _is_explained(error):
                    raise
                print(f"\n{_one_line(error)}", file=sys.stderr, flush=True)  # a progress bar leaves its line open
                raise SystemExit(1) from None
            _report(error)
            raise SystemExit(1) from None

    return wrapper  # type: ignore[return-value]


def report_uncaught() -> None:
    """Report an error that no `report_failure` catches in the same way, from now on."""
    previous = sys.excepthook
    if isinstance(previous, functools.partial) and previous.func is _report_uncaught:
        return
    sys.excepthook = functools.partial(_report_uncaught, previous)


after_joining.append(report_uncaught)


def _report_uncaught(
    previous: Any, kind: type[BaseException], error: BaseException, place: TracebackType | None
) -> None:
    if isinstance(error, Exception) and _is_one_of_several() and own_watchdog() is not None:
        _report(error.with_traceback(place))
    else:
        previous(kind, error, place)


def _is_one_of_several() -> bool:
    return is_distributed() and get_world_size() > 1


def _note_exit(end: SystemExit) -> None:
    watchdog = own_watchdog()
    if watchdog is not None and end.code not in (None, 0):
        watchdog.exit_note = f"ended by SystemExit({end.code!r}) in {place_of_error(end)}"
    elif watchdog is not None:
        watchdog.exit_note = f"ended by SystemExit in {place_of_error(end)}"


def _report(error: Exception) -> None:
    """Print this rank's part of the story, and leave it for torchrun's report if it is the cause."""
    watchdog, mark = own_watchdog(), f"[rank {get_rank()}/{get_world_size()}]"
    if _is_explained(error):
        lines = [_one_line(error)]
    else:
        lines = "".join(traceback.format_exception(type(error), error, error.__traceback__)).rstrip().splitlines()
    if watchdog is None:
        get_error_handler().record_exception(error)
        _print_marked(lines, mark)
        return
    watchdog.begin_report()
    watchdog.exit_note = f"failed with {type(error).__name__}"
    late = isinstance(error, RuntimeError) and TIMED_OUT.search(str(error)) is not None
    lost = LOST_CONNECTION.search(str(error)) is not None
    has_cause = lost or PEER_FAILED.match(str(error)) is not None  # on another rank, which says so
    first = _wait_for_first_failure(watchdog, NEWS_S if has_cause else 0.0)
    if first is None and (late or lost):
        headline = "waited in vain for another rank" if late else "lost the connection to another rank"
        lines.insert(0, f"{headline}, in {current_step()}:")
        keep_in_rank_log("\n".join(f"{mark} {line}" for line in lines))
        watchdog.end_with(lines, place_of_error(error))
        return
    if first is None and watchdog.board.claim_first_failure(get_rank()):
        get_error_handler().record_exception(error)
    elif watchdog.has_said_why:
        return
    else:
        who = "another rank" if first is None else f"rank {first}"
        lines = [f"stopped: {who} failed first, see its message ({type(error).__name__} here)"]
    _print_marked(lines, mark)
    keep_in_rank_log("\n".join(f"{mark} {line}" for line in lines))


def _is_explained(error: Exception) -> bool:
    return getattr(error, "is_explained", False) is True


def _one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _wait_for_first_failure(watchdog: Watchdog, seconds: float) -> int | None:
    """Return the rank that failed by an error of its own, None if none has said so within that time."""
    deadline = time.monotonic() + seconds
    while (first := watchdog.failed_first()) is None and time.monotonic() < deadline and not watchdog.alarmed():
        time.sleep(0.05)
    return None if first == watchdog.rank else first


def _print_marked(lines: list[str], mark: str) -> None:
    text = "\n".join(f"{mark} {line}" for line in lines)
    print(f"\n{text}", file=sys.stderr, flush=True)  # a progress bar leaves its line open
