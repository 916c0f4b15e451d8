"""End the ranks that do not answer when a job ends, or say where they are."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence

from ..failure.deadlock import State
from .process_identity import is_alive


def end_silent(states: Sequence[State]) -> list[str]:
    """Kill these ranks where they still run on this machine; return what to say of each."""
    lines = []
    for state in states:
        process = state["process"]
        if "machine" not in process:  # it never said where it runs
            continue
        name = f"rank {state['rank']}, process {process['pid']}"
        alive = is_alive(process)
        if alive:
            os.kill(int(process["pid"]), signal.SIGKILL)
            lines.append(f"{name}, was stopped or kept the GIL: it has been killed")
        elif alive is False:
            lines.append(f"{name}, is gone: it ended without a word (killed, out of memory, os._exit)")
        else:
            lines.append(f"if {name} on {process['host']}, still runs, end it")
    return lines
