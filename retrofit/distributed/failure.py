"""A rank that fails ends the job: one readable traceback, exit status 1 everywhere, nobody left waiting."""

from __future__ import annotations

import functools
import re
import sys
import traceback
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import get_error_handler

from .process_group import get_rank, get_world_size, is_distributed
from .rank_logging import keep_in_rank_log
from .watchdog import current_step, is_hang, wait_until_shown

F = TypeVar("F", bound=Callable[..., Any])
FIRST_FAILURE_KEY = "retrofit/first_failure"
# What a rank's own collective says when its peer has gone (gloo, nccl): the cause is in the peer's message.
LOST_CONNECTION = re.compile(r"onnection (closed|reset)|Broken pipe|remote process exited|communicator was aborted")


def report_failure(main: F) -> F:
    """Decorate `main` so that an error on any rank is reported once, by the rank that failed first.

    That rank prints its traceback, each line marked `[rank r/w]`, and leaves it for torchrun's report; the ranks that
    broke off because of it print one line. Where a collective waits in vain every rank shows its stack and its step
    (watchdog.py). All exit with status 1. In a single process nothing changes.
    """

    @functools.wraps(main)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        try:
            return main(*args, **kwargs)
        except Exception as error:
            alone = not is_distributed() or get_world_size() == 1
            if alone or _report(error):
                get_error_handler().record_exception(error)  # for torchrun's report; does nothing without torchrun
            if alone:
                raise
            raise SystemExit(1) from None

    return wrapper  # type: ignore[return-value]


def _report(error: Exception) -> bool:
    """Print this rank's part of the story and return whether it is the cause: torchrun's report is for that one."""
    rank, mark = get_rank(), f"[rank {get_rank()}/{get_world_size()}]"
    lost_connection = LOST_CONNECTION.search(str(error)) is not None
    hang = is_hang(error)
    first = _first_failed_rank()
    is_cause = first == rank or (first is None and not lost_connection)
    hang = hang or is_hang(error, wait=lost_connection and first in (rank, None))
    if is_cause or hang:
        lines = "".join(traceback.format_exception(type(error), error, error.__traceback__)).rstrip().splitlines()
    else:
        who = "another rank" if first is None else f"rank {first}"
        lines = [f"stopped: {who} failed first, see its message ({type(error).__name__} here)"]
    if hang:
        lines.insert(0, f"waited in vain for another rank, in {current_step()}:")
    _print_marked(lines, mark)
    keep_in_rank_log("\n".join(f"{mark} {line}" for line in lines))
    if hang:
        _print_marked(wait_until_shown(), mark)
    return is_cause


def _print_marked(lines: list[str], mark: str) -> None:
    if lines:
        text = "\n".join(f"{mark} {line}" for line in lines)
        print(f"\n{text}", file=sys.stderr, flush=True)  # a progress bar leaves its line open


def _first_failed_rank() -> int | None:
    """Return the rank that failed first, this one if no other has said so; None when nobody can be asked."""
    try:
        store = dist.distributed_c10d._get_default_store()
        store.set_timeout(timedelta(seconds=5))
        if store.add(f"{FIRST_FAILURE_KEY}/count", 1) == 1:
            store.set(FIRST_FAILURE_KEY, str(get_rank()))
        return int(store.get(FIRST_FAILURE_KEY))
    except Exception:  # the store lives in rank 0 or in the launcher, and that process may be the one that died
        return None
