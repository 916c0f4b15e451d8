"""The clock that a script sees, a little later on each rank, as processes that start one after the other see it.

A name that each rank makes of its own clock (`runs/20260131_120000`) is another one on some machines and at some times
only. Here it always is. What is measured as a difference of two times is not changed.
"""

from __future__ import annotations

import ctypes
import datetime
import functools
import gc
import time
from contextlib import suppress
from typing import Any

LATER_S = 1.5  # of each rank, than the rank before: another second


def shift_clock(seconds: float) -> None:
    """Let `time` and `datetime` say a time that is `seconds` later."""
    if not seconds:
        return
    now, now_ns = time.time, time.time_ns
    time.time = lambda: now() + seconds
    time.time_ns = lambda: now_ns() + round(seconds * 1e9)
    for name in ("localtime", "gmtime", "ctime"):
        setattr(time, name, _from_now(getattr(time, name)))
    strftime, localtime = time.strftime, time.localtime
    time.strftime = lambda form, *parts: strftime(form, *(parts or (localtime(),)))
    _shift_datetime(datetime.timedelta(seconds=seconds))


def _from_now(function: Any) -> Any:
    """Return a function of `time` that takes the shifted time where it is given no seconds."""

    @functools.wraps(function)
    def shown(seconds: float | None = None) -> Any:
        return function(time.time() if seconds is None else seconds)

    return shown


def _shift_datetime(shift: datetime.timedelta) -> None:
    """Shift what asks the system itself; `today` asks `time.time`.

    A class in its place would not do: objects of the real one could not be pickled. So its own methods are changed, as
    no assignment can on a class of compiled code. An interpreter that does not take this keeps its clock.
    """
    kind = datetime.datetime
    with suppress(IndexError, KeyError, TypeError, AttributeError):
        methods: Any = gc.get_referents(kind.__dict__)[0]
        for name in ("now", "utcnow"):
            methods[name] = classmethod(_later(methods[name], shift))
        ctypes.pythonapi.PyType_Modified(ctypes.py_object(kind))


def _later(method: Any, shift: datetime.timedelta) -> Any:
    def shifted(cls: type, *args: Any, **kwargs: Any) -> Any:
        return method.__get__(None, cls)(*args, **kwargs) + shift

    return shifted
