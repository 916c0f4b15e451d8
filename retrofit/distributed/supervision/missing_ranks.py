"""Say which rank is missing, from what the ranks have last said of themselves, and end it if it still runs."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping, Sequence
from typing import Any

from .process_identity import is_alive

States = Mapping[int, Any]  # by rank; None for one that never said anything


def explain(states: States, silent: Sequence[int], asking: int, store_gone: bool) -> str:
    """Return which ranks are missing, and what is known of them. `silent`: those that did not show themselves."""
    waits_in = f"rank {asking} waited in {states[asking]['where']}"
    if store_gone:
        return (
            f"{waits_in}; the store of the group is gone, and with it the process that has it: rank 0, or the launcher"
        )
    absent = {rank: _last_word(states[rank]) for rank in states if rank in silent or _has_left(states[rank])}
    if not absent:
        absent = {
            rank: f"did not come, it is in {state['where']}; its step is {state['step']}"
            for rank, state in states.items()
            if rank != asking and not state["blocked_s"]
        }
    if not absent:
        return f"{waits_in}; all ranks are there and wait for each other: each shows its place above"
    return "\n".join(
        [f"{waits_in} for a rank that is missing", *(f"rank {rank} {why}" for rank, why in absent.items())]
    )


def end_silent(states: States, silent: Sequence[int]) -> list[str]:
    """Kill the silent ranks that still run on this machine; return what to say of each that may run elsewhere."""
    lines = []
    for rank in silent:
        process = (states[rank] or {}).get("process")
        alive = is_alive(process) if process else None
        if process and alive:
            os.kill(int(process["pid"]), signal.SIGKILL)
            lines.append(f"rank {rank}, process {process['pid']}, was stopped or kept the GIL: it has been killed")
        elif process and alive is None:
            lines.append(f"if rank {rank} still runs, end it: process {process['pid']} on {process['host']}")
    return lines


def _has_left(state: Any) -> bool:
    return bool(state and state["left"])


def _last_word(state: Any) -> str:
    if not state:
        return "never said anything"
    if state["left"]:
        return f"has {state['left']}; its step was {state['step']}"
    last = f"last seen in {state['where']}; its step was {state['step']}"
    process = state["process"]
    alive = is_alive(process)
    name = f"process {process['pid']} on {process['host']}"
    if alive is False:
        return f"is gone: {name} ended without a word (killed, out of memory, os._exit), {last}"
    return f"does not answer: {name}, {last}"
