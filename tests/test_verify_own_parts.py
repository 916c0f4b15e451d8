"""Parts of a data set that the script gives to each rank by hand: what they leave out of an evaluation is a fault."""

from __future__ import annotations

import pytest
from verify_evidence import TRAIN, VAL, change, events_of, failures, order_of_epoch, redraw, sound_runs

from retrofit.verify.checks import run_checks
from retrofit.verify.trace.events import BatchDrawn, EpochOrder, IterationStart


def subsets(runs, parts):
    """Each rank evaluates a Subset of its own."""
    for name in ("many", "resumed", "default"):
        for rank, part in enumerate(parts):
            give(runs[name], rank, part, dataset=VAL, members=part, length=len(part))


def lists(runs, parts):
    """Each rank evaluates a list of its own, in which samples count from 0."""
    for name in ("many", "resumed", "default"):
        for rank, part in enumerate(parts):
            give(runs[name], rank, [*range(len(part))], dataset=f"list:{len(part)}:0", length=len(part))


def give(run, rank, part, **start):
    for begin in events_of(run, IterationStart, [rank], dataset=VAL):
        having = {"iteration": begin.iteration}
        change(run, IterationStart, [rank], having, **start)
        change(run, EpochOrder, [rank], having, batches=[part])
        change(run, BatchDrawn, [rank], having, samples=part)


@pytest.mark.parametrize("give_parts", [subsets, lists])
@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        (([0, 1, 2], [3, 4, 5]), {}),
        (([0, 1, 2], [3, 4]), {"evaluation": "RF111"}),  # 6 // 2 where there are 7, say
    ],
)
def test_a_remainder_that_no_rank_evaluates_is_left_out(give_parts, parts, expected) -> None:
    runs = sound_runs()
    if give_parts is lists:
        for name in ("one", "original", "reference"):
            change(runs[name], IterationStart, having={"dataset": VAL}, dataset="list:6:0")
    give_parts(runs, parts)
    assert failures(run_checks(runs)) == expected


def test_a_remainder_that_no_rank_trains_on_is_not_accused() -> None:
    runs = sound_runs()
    for rank in (0, 1):
        change(runs["many"], IterationStart, [rank], {"dataset": TRAIN}, dataset="list:7:0", length=7)
    for name in ("one", "original", "reference"):
        change(runs[name], IterationStart, having={"dataset": TRAIN}, dataset="list:15:0", length=15)
    redraw(runs["many"], lambda rank, epoch: [x % 7 for x in order_of_epoch(epoch)[rank::2]])
    verdicts = {verdict.check: verdict for verdict in run_checks(runs)}
    assert verdicts["split"].status == "PASS"
