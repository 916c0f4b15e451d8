"""Judge from what the ranks say about themselves whether they wait for each other for good, and at which call.

The usual cause is a collective called under `if is_main_process():`. That is certain only if every rank waits or has
ended, and one of them waits in a call that another one has passed. A rank that computes, loads or downloads, for
however long, is merely slow. All of this is plain values; watchdog.py collects them.

A state has `rank`; `step` and `where`, for people; `finished`, the number of runtime collectives it has been through;
`open`, the number of the one it is in, or None; `calls`, the last ones as (number, name, site, begun), where `begun`
counts the collectives of torch begun since the call before; `begun`, those since the last finished call; `blocked_s`,
for how long it has waited; and `left`, how the process ended, if it has.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

PATIENCE_S = 5.0  # how long a rank waits before anything is suspected

State = Mapping[str, Any]
REMEDY = "every rank must call it, also those that write nothing: take it out of `if is_main_process():`"


def is_slow(state: State | None) -> bool:
    """Return whether a rank may still come: it neither waits nor has ended, as far as is known."""
    return state is None or not (state["left"] or state["blocked_s"] >= PATIENCE_S)


def judge(states: Sequence[State]) -> str:
    """Return why the ranks, all of them, wait for each other for good; "" if they may not."""
    if any(is_slow(state) for state in states):
        return ""
    for call, caller in _rarest_first(states):
        absent = {state["rank"]: why for state in states if (why := _why_absent(call, state))}
        if absent and caller["rank"] not in absent:
            came = _numbers(state["rank"] for state in states if state["rank"] not in absent)
            text = f"{call[1]} was called by {came} at {call[2]}, but not by {_numbers(absent)}; {REMEDY}\n"
            text += "\n".join(f"rank {rank} {why}" for rank, why in absent.items())
            return text + _first_difference(caller, call, states[next(iter(absent))])
    ended = [state for state in states if state["left"]]
    if ended and len(ended) < len(states):
        waiting = next(state for state in states if not state["left"])
        return f"rank {waiting['rank']} waits in {waiting['where']} for a rank that has ended\n" + "\n".join(
            f"rank {state['rank']} has {state['left']}; its step was {state['step']}" for state in ended
        )
    return ""


def _rarest_first(states: Sequence[State]) -> list[tuple[Sequence[Any], State]]:
    """Return the ranks' calls, by number; of two with one number first the one that fewer ranks have made."""
    made = [(call, state) for state in states for call in state["calls"]]
    counts = Counter((call[0], call[1]) for call, _ in made)
    return sorted(made, key=lambda entry: (entry[0][0], counts[entry[0][0], entry[0][1]], entry[1]["rank"]))


def _why_absent(call: Sequence[Any], other: State) -> str:
    """Return why `other` will never be in a call that another rank has begun; "" if it may come, or was there."""
    number, name, _, begun = call
    there = next((entry for entry in other["calls"] if entry[0] == number), None)
    if there is not None:
        return "" if there[1] == name else f"called {there[1]} instead, at {there[2]}; its step is {other['step']}"
    if other["finished"] != number:
        return ""
    if other["left"]:
        return f"has {other['left']}; its step was {other['step']}"
    passed = any(now > then for now, then in zip(other["begun"], begun))
    return f"went past it and waits in {other['where']}; its step is {other['step']}" if passed else ""


def _first_difference(caller: State, call: Sequence[Any], other: State) -> str:
    """Return a line on an earlier call that the two made at different places, which may be what parted them."""
    theirs = {entry[0]: entry for entry in other["calls"]}
    for number, name, site, _ in caller["calls"]:
        entry = theirs.get(number)
        if entry is not None and number < call[0] and entry[2] != site:
            return (
                f"\nbefore that {name} at {site} on rank {caller['rank']} met {entry[1]} at {entry[2]} on rank "
                f"{other['rank']}: one of them is not called by every rank"
            )
    return ""


def _numbers(ranks: Any) -> str:
    numbers = sorted(ranks)
    return f"rank{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"
