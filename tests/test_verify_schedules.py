"""A learning rate schedule that is at another step, or is longer, is found before its rates differ."""

from __future__ import annotations

import pytest
from verify_evidence import events_of, insert, sound_runs

from retrofit.verify.checks import run_checks
from retrofit.verify.trace.events import OptimizerStep, StateBeforeStep
from retrofit.verify.verdict import PASS

RUNS = ("one", "many", "reference")


def runs_with(**values):
    """Return sound runs with a schedule of these settings."""
    runs = sound_runs()
    for run in (runs[name] for name in RUNS):
        for rank in range(run.world_size):
            insert(run, [rank], OptimizerStep, StateBeforeStep("StepLR 0", dict(values)), number=3)
    return runs


def on_rank(runs, name, rank, **values):
    for event in events_of(runs[name], StateBeforeStep, [rank]):
        event.values.update(values)


def verdict_of(runs):
    return next(verdict for verdict in run_checks(runs) if verdict.check == "lr")


@pytest.mark.parametrize(
    ("name", "rank", "values", "words"),
    [
        ("many", 1, {"last_epoch": 0}, "last_epoch of StepLR 0: 1 on rank 0, 0 on rank 1"),
        (
            "one",
            0,
            {"step_size": 15},
            "StepLR 0: last_epoch 1, step_size 30 with 2 processes, last_epoch 1, step_size 15 with 1",
        ),
        (
            "one",
            0,
            {"milestones/0": 50},
            "StepLR 0: last_epoch 1, milestones/0 100 with 2 processes, last_epoch 1, milestones/0 50 with 1",
        ),
    ],
)
def test_schedules_apart_are_found(name, rank, values, words):
    runs = runs_with(last_epoch=1, step_size=30, **{"milestones/0": 100})
    on_rank(runs, name, rank, **values)
    verdict = verdict_of(runs)
    assert (verdict.status, verdict.cause, verdict.value) == ("FAIL", "RF305", words)


@pytest.mark.parametrize("values", [{"step_size": 31}, {"num_bad_epochs": 4}, {"total": 0.5}])
def test_schedules_that_are_the_same_but_for_rounding_and_results_pass(values):
    runs = runs_with(last_epoch=1, step_size=30, num_bad_epochs=1, total=0.1)
    on_rank(runs, "one", 0, **values)
    assert verdict_of(runs).status == PASS


def test_a_schedule_that_is_stepped_more_often_and_as_much_longer_passes():
    """Accelerate steps a schedule once for each process, and its length is given in steps of one process."""
    runs = runs_with(last_epoch=2, T_max=80)
    on_rank(runs, "one", 0, last_epoch=1, T_max=40)
    assert verdict_of(runs).status == PASS


def test_a_schedule_that_is_stepped_more_often_and_not_longer_is_found():
    runs = runs_with(last_epoch=2, T_max=40)
    on_rank(runs, "one", 0, last_epoch=1)
    assert verdict_of(runs).status == "FAIL"


def test_schedules_of_runs_with_other_numbers_of_steps_are_not_compared():
    runs = runs_with(last_epoch=1, step_size=30)
    on_rank(runs, "one", 0, step_size=15)
    events = runs["one"].ranks[0].events
    events.remove([event for event in events if isinstance(event, OptimizerStep)][-1])
    assert verdict_of(runs).status == PASS
