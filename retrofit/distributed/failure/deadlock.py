"""Reports of each rank to the others, and the proof from them that the job cannot continue.

The usual cause is a collective under `if is_main_process():`. It is certain only where every rank waits or has ended,
and one waits in a call that another one has passed. A rank that computes, loads or downloads is merely slow.

A state is a dict of plain values: `rank`, `process`; `beat`, a number that grows; `step` and `where`, for people;
`finished`, the number of runtime collectives it has completed; `calls`, the last ones as (number, name, site, begun),
where `begun` counts the collectives of torch since the call before; `begun`, those since the last completed call;
`waits_s`, how long it has waited for other ranks; `left`, how it has ended.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Mapping, Sequence
from types import FrameType
from typing import Any

import torch

from .collective_calls import called_from

PATIENCE_S = 5.0  # how long a rank waits before anything is suspected
INSTALLED = ("<frozen", os.path.dirname(os.__file__), os.path.dirname(torch.__path__[0]))  # files of libraries
REMEDY = "every rank must call it, also those that write nothing: take it out of `if is_main_process():`"
UNKNOWN: dict[str, Any] = {"beat": 0, "process": {"pid": "?", "host": "?"}, "finished": 0, "begun": [], "calls": []}
UNKNOWN |= {"step": "not known", "where": "a place that it has not told", "waits_s": 0.0, "left": ""}

State = Mapping[str, Any]


def is_slow(state: State) -> bool:
    """Return whether a rank may still come: it neither waits nor has ended, as far as is known."""
    return not (state["left"] or state["waits_s"] >= PATIENCE_S)


def judge(states: Sequence[State]) -> str:
    """Return why the ranks wait for each other for good; "" if they may not. `states`: of all ranks, in order."""
    if any(is_slow(state) for state in states):
        return ""
    for number in sorted({call[0] for state in states for call in state["calls"]}):
        made = {state["rank"]: call for state in states for call in state["calls"] if call[0] == number}
        names = [call[1] for call in made.values()]
        name = min(names, key=names.count)  # of two calls with one number the rarer one is wrong
        came = [rank for rank, call in made.items() if call[1] == name]
        call, absent = made[came[0]], {}
        for state in states:
            other = made.get(state["rank"])
            passed = state["left"] or any(now > then for now, then in zip(state["begun"], call[3]))
            if other and other[1] != name:
                absent[state["rank"]] = f"called {other[1]} instead, at {other[2]}; its step is {state['step']}"
            elif not other and state["finished"] == number and passed:
                absent[state["rank"]] = ("" if state["left"] else "went past it and ") + _status(state)
        if absent:
            lines = [
                f"{name} was called by {_rank_names(came)} at {call[2]}, but not by {_rank_names(absent)}; {REMEDY}"
            ]
            lines += [f"rank {rank} {why}" for rank, why in absent.items()]
            return "\n".join([*lines, *_first_difference(states[came[0]], states[next(iter(absent))], number)])
    waiting = next((state for state in states if not state["left"]), None)
    return explain(states, waiting) if waiting and any(state["left"] for state in states) else ""


def explain(states: Sequence[State], asking: State, silent: Sequence[int] = ()) -> str:
    """Return which ranks `asking` has waited for in vain. `silent`: those that do not answer."""
    missing = [state for state in states if state["left"] or state["rank"] in silent]
    missing = missing or [state for state in states if state["rank"] != asking["rank"] and not state["waits_s"]]
    first = f"rank {asking['rank']} waited in {asking['where']}"
    if not missing:
        return f"{first}; all ranks are there and wait for each other: each shows its place above"
    lines = [f"rank {state['rank']} {_status(state, state['rank'] in silent)}" for state in missing]
    return "\n".join([f"{first} for a rank that is missing", *lines])


def _status(state: State, is_silent: bool = False) -> str:
    if state["left"]:
        return f"{state['left']}; its step was {state['step']}"
    if is_silent:
        name = f"process {state['process']['pid']} on {state['process']['host']}, at its end, killed or stopped"
        return f"does not answer: {name}, last seen in {state['where']}; its step was {state['step']}"
    return f"{'waits' if state['waits_s'] else 'did not come, it is'} in {state['where']}; its step is {state['step']}"


def _first_difference(one: State, other: State, number: int) -> list[str]:
    """Return a line on a call before `number` that two ranks made at different places, which may have parted them."""
    theirs = {call[0]: call for call in other["calls"]}
    return [
        f"before that {call[1]} at {call[2]} on rank {one['rank']} met {met[1]} at {met[2]} on rank {other['rank']}: "
        "one of them is not called by every rank"
        for call in one["calls"]
        if call[0] < number and (met := theirs.get(call[0], call))[2] != call[2]
    ][:1]


def _rank_names(ranks: Any) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def place_of(frame: FrameType | None) -> str:
    """Return where in the script a thread is: the innermost frame that is neither of the runtime nor of a library."""
    if frame is None:
        return "a thread that has ended"
    own = called_from(frame)[1]
    outer = (frame for frame, _ in traceback.walk_stack(own))
    own = next((frame for frame in outer if not frame.f_code.co_filename.startswith(INSTALLED)), own)
    return f"{own.f_code.co_name} ({own.f_code.co_filename}:{own.f_lineno})"
