"""A decorator for a script's `main`: an error on any rank is reported once, and none is left waiting."""

from __future__ import annotations

import functools
import sys
import traceback
from collections.abc import Callable
from typing import Any, TypeVar

from ..failure.watchdog import own_watchdog, place_of_error, record_error
from ..process.process_group import get_rank, get_world_size

F = TypeVar("F", bound=Callable[..., Any])


def report_failure(main: F) -> F:
    """Decorate `main` so that an error on any rank is reported once, by the rank that failed first.

    That rank prints its traceback, each line marked `[rank r/w]`, and leaves it for torchrun's report; the ranks that
    broke off because of it print one line. Where a collective waits in vain every rank shows its stack and its step,
    and one names what is missing (failure/watchdog.py). All exit with status 1. In a single process nothing changes.

    An error whose class has `is_explained = True` is one line without a traceback, in a single process too: its message
    says what was wrong and what to do.
    """

    @functools.wraps(main)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        try:
            return main(*args, **kwargs)
        except SystemExit as end:
            if (watchdog := own_watchdog()) is not None:
                status = f"({end.code!r})" if end.code not in (None, 0) else ""
                watchdog.left = f"has ended by SystemExit{status} in {place_of_error(end)}"
            raise
        except Exception as error:
            if (watchdog := own_watchdog()) is not None:
                watchdog.report(error)
            elif not _report_alone(error):
                raise
            raise SystemExit(1) from None

    return wrapper  # type: ignore[return-value]


def _report_alone(error: Exception) -> bool:
    """Report an error that no other rank waits for; return whether it needs no traceback of the interpreter's."""
    record_error(error)
    is_explained, is_one_of_several = getattr(error, "is_explained", False) is True, get_world_size() > 1
    text = f"{type(error).__name__}: {error}"
    if not is_explained:
        text = "".join(traceback.format_exception(type(error), error, error.__traceback__)).rstrip()
    mark = f"[rank {get_rank()}/{get_world_size()}] " if is_one_of_several else ""
    if is_explained or is_one_of_several:
        print("\n" + "\n".join(mark + line for line in text.splitlines()), file=sys.stderr, flush=True)
    return is_explained or is_one_of_several
