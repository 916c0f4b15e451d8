"""set_epoch() of samplers that a script defines itself: one that is never called leaves each epoch in one order."""

from __future__ import annotations

import random

import pytest
from torch.utils.data import BatchSampler, DataLoader, Sampler, SequentialSampler
from verify_evidence import change, order_of_epoch, redraw, sound_runs

from retrofit.verify.checks import CheckOptions
from retrofit.verify.checks.data.reshuffle import reshuffle
from retrofit.verify.trace.data.datasets import follows_epoch
from retrofit.verify.trace.events import IterationStart


class Buckets(Sampler):
    """Batches whose order is another one in each epoch, unless `shuffles` is False."""

    def __init__(self, shuffles: bool, draws: bool = False) -> None:
        self.shuffles, self.draws, self.epoch = shuffles, draws, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self):
        batches = [[3 * k, 3 * k + 2, 3 * k + 1] for k in range(8)]
        if self.shuffles:
            (random if self.draws else random.Random(self.epoch)).shuffle(batches)
        return iter(batches)

    def __len__(self) -> int:
        return 8


@pytest.mark.parametrize(
    ("sampler", "expected"),
    [
        (Buckets(True), True),
        (Buckets(False), False),  # set_epoch() changes nothing
        (Buckets(True, draws=True), False),  # another order without it
        (BatchSampler(SequentialSampler(range(24)), 3, False), False),
    ],
    ids=["shuffles", "fixed", "draws", "torch"],
)
def test_an_own_sampler_follows_the_epoch_that_it_is_told(sampler: Sampler, expected: bool) -> None:
    assert follows_epoch(DataLoader(list(range(24)), batch_sampler=sampler), 1009) is expected


@pytest.mark.parametrize(("follows", "status", "cause"), [(True, "FAIL", "RF101"), (False, "PASS", None)])
def test_one_order_in_all_epochs_is_a_fault_where_set_epoch_changes_it(follows, status, cause) -> None:
    runs = sound_runs(original=False)
    for name, parts in (("one", 1), ("many", 2)):
        redraw(runs[name], lambda rank, epoch, parts=parts: order_of_epoch(0)[rank::parts])
    change(runs["many"], IterationStart, having={"epoch": 1}, samplers=["Buckets"], follows_epoch=follows)
    verdict = reshuffle(runs, CheckOptions())
    assert (verdict.status, verdict.cause) == (status, cause), verdict
