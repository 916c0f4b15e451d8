"""Micro batches: what BatchNorm takes its statistics over is made of the same samples on one process, or not judged."""

from __future__ import annotations

import pytest
from verify_evidence import change, events_of, failures, insert, sound_runs

from retrofit.verify.checks import run_checks
from retrofit.verify.trace.data.replay.micro_batches import joined_order
from retrofit.verify.trace.events import (
    BackwardCall,
    BatchDrawn,
    BatchPart,
    BatchStatistics,
    LocalBatchNorm,
    OptimizerStep,
)

HALVES = [[0, 1], [2, 3]]


@pytest.mark.parametrize(
    ("cut", "parts"),
    [
        (lambda rows: [rows[: len(rows) // 2], rows[len(rows) // 2 :]], HALVES),
        (lambda rows: [rows[::-1][: len(rows) // 2], rows[::-1][len(rows) // 2 :]], [[3, 2], [1, 0]]),
        (lambda rows: [rows[k::2] for k in range(2)], [[0, 2], [1, 3]]),
    ],
    ids=["slices", "slices of the reversed batch", "every second sample"],
)
@pytest.mark.parametrize("shuffled", [False, True])
def test_a_part_of_a_joined_batch_has_the_samples_of_the_ranks_parts(cut, parts, shuffled):
    order = joined_order([4, 4], [parts, parts], shuffled)
    expected = [{row + 4 * rank for rank in (0, 1) for row in rows} for rows in parts]
    assert [set(rows) for rows in cut(order)] == expected


def test_ranks_with_other_numbers_of_samples_are_joined_by_parts():
    assert joined_order([4, 3], [HALVES, [[0, 1], [2]]]) == [0, 1, 4, 5, 2, 3, 6]


def test_parts_of_a_permutation_are_of_all_ranks():
    """A permutation of the joined batch permutes each rank's rows at their places."""
    order = joined_order([4, 4], [[[2, 0], [1, 3]], [[3, 1], [0, 2]]])
    assert [row // 4 for row in order] == [0, 1] * 4


def test_a_batch_that_is_not_cut_is_joined_in_turn():
    assert joined_order([2, 3], [[], []]) == [0, 1, 2, 3, 4]
    assert sorted(joined_order([2, 3], [[], []], shuffled=True)) == [0, 1, 2, 3, 4]


def cut_batches(run, size):
    for rank, trace in enumerate(run.ranks):
        for number, batch in enumerate(events_of(run, BatchDrawn, [rank])[:1]):
            rows = list(range(len(batch.samples)))
            for part in reversed([rows[start : start + size] for start in range(0, len(rows), size)]):
                insert(run, [trace.rank], BackwardCall, BatchPart(batch.iteration, number, part))


@pytest.mark.parametrize(("size_alone", "is_judged"), [(4, True), (2, False)])
def test_other_parts_on_one_process_are_not_judged_where_batchnorm_sees_them(size_alone, is_judged):
    runs = {name: run for name, run in sound_runs().items() if name in ("one", "many", "reference")}
    for batch in events_of(runs["reference"], BatchDrawn):  # the ranks' samples in turn, as a cut batch is joined
        half = len(batch.samples) // 2
        if batch.iteration == 0:
            batch.samples[:] = [sample for pair in zip(batch.samples[:half], batch.samples[half:]) for sample in pair]
    cut_batches(runs["many"], 2)
    cut_batches(runs["reference"], size_alone)
    change(runs["many"], OptimizerStep, losses=lambda event: [loss + 0.01 for loss in event.losses])
    verdicts = {verdict.check: verdict for verdict in run_checks(runs)}
    assert verdicts["loss"].status == ("FAIL" if is_judged else "NOT APPLICABLE"), verdicts["loss"]
    assert is_judged or "of 4, 4 samples on all ranks, of 2, 2, 2, 2 on one process" in verdicts["loss"].summary


@pytest.mark.parametrize(("rows", "causes"), [(4, {}), (8, {"batchnorm": "RF206"})])
def test_statistics_of_as_many_samples_as_on_one_process_are_right(rows, causes):
    runs = {name: run for name, run in sound_runs().items() if name in ("one", "many", "reference")}
    insert(runs["many"], (0, 1), BackwardCall, LocalBatchNorm(rows=4, channels=3))
    insert(runs["reference"], [0], BackwardCall, BatchStatistics(rows=rows))
    assert failures(run_checks(runs)) == causes
