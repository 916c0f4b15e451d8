"""When ranks wait for each other for good, and when one of them is merely slow."""

from __future__ import annotations

from typing import Any

import pytest

from retrofit.distributed.failure.deadlock import PATIENCE_S, UNKNOWN, is_slow, judge


def state(rank: int, *calls: str, **more: Any) -> dict[str, Any]:
    """Return the state of a rank that waits; a call is "name", "name@site" or "name+1" (one collective before it)."""
    told = []
    for number, call in enumerate(calls):
        name, _, begun = call.partition("+")
        name, _, site = name.partition("@")
        told.append((number, name, site or f"train.py:{number}", [int(begun or 0)]))
    default = {"rank": rank, "beat": 1, "step": "step 3", "where": "main (train.py:9)", "left": ""}
    return {**default, "finished": len(calls), "begun": [0], "calls": told, "waits_s": PATIENCE_S, **more}


def waits(rank: int, *calls: str, **more: Any) -> dict[str, Any]:
    """Return the state of a rank that is in the last of its calls."""
    return state(rank, *calls, finished=len(calls) - 1, **more)


STUCK = {
    "the others are in DDP's backward": (
        [waits(0, "reduce", "save"), state(1, "reduce", begun=[1]), state(2, "reduce", begun=[1])],
        "save was called by rank 0 at train.py:1, but not by ranks 1, 2; every rank",
    ),
    "the others are in another call": (
        [waits(0, "reduce", "save"), waits(1, "reduce", "cleanup"), waits(2, "reduce", "cleanup")],
        "rank 1 called cleanup instead, at train.py:1",
    ),
    "the other has ended": (
        [waits(0, "reduce", "save"), state(1, "reduce", left="has ended its program", waits_s=0.0)],
        "rank 1 has ended its program; its step was step 3",
    ),
    "one that waits in torch alone, for one that has ended": (
        [state(0, "reduce", begun=[1]), state(1, "reduce", left="has ended its program")],
        "rank 0 waited in main (train.py:9) for a rank that is missing\nrank 1 has ended its program; its step",
    ),
    "what was called alone met another collective and has returned": (
        [state(0, "reduce", "mean", begun=[1]), state(1, "reduce", begun=[1])],
        "mean was called by rank 0 at train.py:1, but not by rank 1",
    ),
    "what was called alone met a call of its kind": (
        [waits(0, "sum@a:1", "sum@a:2"), state(1, "sum@a:2", begun=[1])],
        "before that sum at a:1 on rank 0 met sum at a:2 on rank 1: one of them is not called by every rank",
    ),
    "a rank other than 0 calls it": (
        [state(0, begun=[2]), waits(1, "barrier+1")],
        "barrier was called by rank 1 at train.py:0, but not by rank 0",
    ),
}


@pytest.mark.parametrize("case", STUCK)
def test_stuck_ranks(case: str) -> None:
    states, text = STUCK[case]
    assert text in judge(states)


SLOW = {
    "loads, computes or downloads": [waits(0, "reduce", "save"), state(1, "reduce", begun=[1], waits_s=0.0)],
    "has not been waiting for long": [waits(0, "reduce", "save"), waits(1, "reduce", "other", waits_s=4.9)],
    "all are in the same call, which takes its time": [waits(0, "gather"), waits(1, "gather")],
    "the same call from two lines": [waits(0, "broadcast@a:1"), waits(1, "broadcast@a:3")],
    "one has left a call whose data still arrives": [waits(0, "broadcast", "sum"), waits(1, "broadcast")],
    "all wait in torch, in the same place": [state(0, "reduce", begun=[1]), state(1, "reduce", begun=[1])],
    "late, as far as the collectives show": [waits(0, "a", "b", "c+2"), state(1, "a", "b", begun=[2])],
    "a rank of which nothing is known": [waits(0, "reduce", "save"), {"rank": 1, **UNKNOWN}],
    "all have ended": [state(0, left="has ended"), state(1, left="has ended")],
}


@pytest.mark.parametrize("case", SLOW)
def test_slow_ranks(case: str) -> None:
    assert judge(SLOW[case]) == ""


def test_a_rank_that_has_ended_is_not_slow() -> None:
    assert not is_slow(state(0, left="has ended", waits_s=0.0)) and is_slow(state(0, waits_s=0.0))
