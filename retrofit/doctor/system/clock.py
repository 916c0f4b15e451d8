"""Check of the clock: plausible, and synchronised."""

from __future__ import annotations

import ctypes
import sys
import time
from datetime import datetime, timezone

from retrofit.doctor.finding import FAIL, OK, SKIP, WARN, Finding, Plan

EARLIEST_YEAR = 2024
UNSYNCHRONISED = 5  # TIME_ERROR of adjtimex(2)


def check_clock(plan: Plan, now: float | None = None) -> Finding:
    """Check whether the clock is later than this program, and synchronised if there are several machines."""
    name = "clock"
    moment = datetime.fromtimestamp(time.time() if now is None else now, timezone.utc)
    value = f"{moment:%Y-%m-%d %H:%M} UTC"
    remedy = "sudo timedatectl set-ntp true (or start chronyd)"
    if moment.year < EARLIEST_YEAR:
        return Finding(name, FAIL, f"{value}: certificates and file times will look wrong", remedy)
    synchronised = is_synchronised()
    if synchronised is None:
        return Finding(name, SKIP, f"{value}; the kernel does not report whether it is synchronised")
    if synchronised:
        return Finding(name, OK, f"{value}, synchronised")
    if plan.nnodes > 1:
        return Finding(name, WARN, f"{value}, not synchronised: logs of several machines will not fit", remedy)
    return Finding(name, OK, f"{value}, not synchronised, which matters with several machines only")


def is_synchronised() -> bool | None:
    """Return whether the kernel's clock is disciplined (NTP, PTP); None: unknown."""
    if not sys.platform.startswith("linux"):
        return None
    try:
        # Larger than any struct timex; all zero: only read.
        state = ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.create_string_buffer(512))
    except (OSError, AttributeError):
        return None
    return None if state < 0 else state != UNSYNCHRONISED
