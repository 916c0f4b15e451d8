"""Samples that a sampler leaves out, so that all ranks have as many: judged as `drop_last` of torch's own samplers."""

from __future__ import annotations

import pytest
from verify_evidence import change, redraw, sound_runs

from retrofit.verify.checks import CheckOptions
from retrofit.verify.checks.data.shards import shards
from retrofit.verify.trace.events import IterationStart

SIZE = 23
# For each: the batch of a rank, the samples that the ranks draw, whether they come from a batch sampler, the verdict.
DROPPED = {
    "one sample of an odd number": (3, 22, False, "PASS"),
    "a batch that is not full": (4, 16, True, "PASS"),
    "less than a batch of a sampler for single samples": (4, 16, False, "FAIL"),
    "more than a batch": (2, 16, True, "FAIL"),
}


@pytest.mark.parametrize("name", DROPPED)
def test_what_makes_all_ranks_even_may_be_left_out(name: str) -> None:
    batch, drawn, by_batches, expected = DROPPED[name]
    runs = sound_runs()
    for run in ("one", "many"):
        sizes = {"batch_size": None} if by_batches else {}
        change(runs[run], IterationStart, having={"grad_enabled": True}, length=SIZE, **sizes)
    redraw(runs["one"], lambda rank, epoch: list(range(SIZE)), 2 * batch)
    redraw(runs["many"], lambda rank, epoch: list(range(SIZE))[rank:drawn:2], batch)
    verdict = shards(runs, CheckOptions())
    assert verdict.status == expected, verdict
