"""The checks as a whole: a sound training passes all of them, no evidence is no PASS."""

from __future__ import annotations

import pytest
from verify_evidence import (
    STEPS_PER_EPOCH,
    change,
    chunks,
    cut,
    events_of,
    failures,
    insert,
    run_of,
    sound_runs,
)

from retrofit.verify.checks import CHECKS, CheckOptions, run_checks
from retrofit.verify.evidence import RankTrace, Run
from retrofit.verify.trace.events import (
    BackwardCall,
    BatchDrawn,
    CollectiveCall,
    DecisionInput,
    EpochOrder,
    FileChange,
    FileLoad,
    FileSave,
    InitialWeights,
    IterationEnd,
    IterationStart,
    LocalBatchNorm,
    LoggedScalar,
    OptimizerFound,
    OptimizerStep,
    OutputLine,
    ParserUse,
    ProcessExit,
    UncontrolledDraw,
)
from retrofit.verify.verdict import INCOMPLETE, exit_status, overall_status


def verdicts_of(runs, **options):
    return {verdict.check: verdict for verdict in run_checks(runs, CheckOptions(**options))}


def statuses_of(runs, **options):
    return {check: verdict.status for check, verdict in verdicts_of(runs, **options).items()}


def test_a_sound_training_passes_every_check():
    assert statuses_of(sound_runs()) == dict.fromkeys(CHECKS, "PASS")


def test_verdicts_come_in_reading_order_with_summaries_of_one_line():
    verdicts = run_checks(sound_runs())
    assert [verdict.check for verdict in verdicts] == list(CHECKS)
    assert all(verdict.summary and "\n" not in verdict.summary and verdict.title for verdict in verdicts)


# --- no evidence is no PASS ------------------------------------------------------------------------------------------

OF_DATA = (IterationStart, EpochOrder, BatchDrawn, IterationEnd)
OF_STEPS = (OptimizerStep, InitialWeights, OptimizerFound)
NEEDS = [
    (OF_DATA, {"split", "shards", "reshuffle", "global_batch", "random_streams", "evaluation", "metrics"}),
    (OF_STEPS, {"original", "initial_state", "loss", "gradients", "parameters", "ranks_agree"}),
    (OF_STEPS, {"lr", "batchnorm", "communication", "resume", "determinism"}),
    ((CollectiveCall,), {"collectives", "communication"}),
    ((OutputLine, LoggedScalar), {"metrics", "logs"}),
    ((FileChange, FileSave), {"single_writer"}),
    ((FileLoad,), {"devices"}),
    ((DecisionInput,), {"decisions"}),
]


@pytest.mark.parametrize(
    ("kinds", "checks"), NEEDS, ids=[f"{kinds[0].__name__}-{len(checks)}" for kinds, checks in NEEDS]
)
def test_without_evidence_nothing_passes(kinds, checks):
    runs = sound_runs()
    if FileLoad in kinds:
        del runs["resumed"], runs["reload"], runs["reload_original"]
    for run in runs.values():
        for trace in run.ranks:
            trace.events = [event for event in trace.events if not isinstance(event, kinds)]
    statuses = statuses_of(runs)
    assert {check for check in checks if statuses[check] == "PASS"} == set()


def no_value(event, key, value):
    """Return the values of a step with each number of `key` replaced."""
    if key == "losses":
        return [value for _ in event.losses] if value is not None else []
    return [None if value is None else [value, value] for _ in getattr(event, key)]


@pytest.mark.parametrize("value", [None, float("nan"), float("inf")])
@pytest.mark.parametrize(
    ("check", "key"), [("loss", "losses"), ("gradients", "gradients"), ("parameters", "parameters")]
)
def test_two_runs_without_a_number_are_not_the_same(check, key, value):
    runs = sound_runs()
    for run in runs.values():
        if events_of(run, OptimizerStep):
            change(run, OptimizerStep, **{key: lambda event: no_value(event, key, value)})
    verdicts = run_checks(runs)
    (verdict,) = [verdict for verdict in verdicts if verdict.check == check]
    assert verdict.status == "NOT APPLICABLE"
    assert ("seen" if value is None else "finite") in verdict.summary
    assert overall_status(verdicts) == INCOMPLETE and exit_status(verdicts) == 3


def test_without_any_run_nothing_is_judged():
    assert set(statuses_of({}).values()) == {"NOT APPLICABLE"}


@pytest.mark.parametrize("name", ["one", "many", "reference", "original"])
def test_one_run_alone_fails_nothing(name):
    runs = {name: sound_runs()[name]}
    assert "FAIL" not in statuses_of(runs).values()


def test_runs_without_any_record_fail_the_run_check_only():
    runs = {name: Run(name, 1, [RankTrace(0, [])], [1], logs=[""]) for name in ("one", "reference")}
    runs["many"] = Run("many", 2, [RankTrace(0, []), RankTrace(1, [])], [1, 1], logs=["", ""])
    statuses = statuses_of(runs)
    assert statuses.pop("completes") == "FAIL"
    assert set(statuses.values()) == {"NOT APPLICABLE"}


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize(
    "kind",
    [ParserUse, IterationStart, BatchDrawn, OptimizerStep, IterationEnd, ProcessExit],
    ids=lambda kind: kind.__name__,
)
def test_a_crash_anywhere_fails_as_a_crash_only(kind, rank):
    """What was recorded before is judged, what is missing afterwards is not held against the script."""
    runs = {name: run for name, run in sound_runs().items() if name in ("one", "many")}
    cut(runs["many"], rank, kind, 0, 1, ("ValueError", "target 3 is out of bounds"))
    other = 1 - rank
    cut(runs["many"], other, kind, -1, None)
    verdicts = verdicts_of(runs)
    assert failures(verdicts.values()) == {"completes": None}
    assert verdicts["completes"].value == "ValueError: target 3 is out of bounds at train.py:12 in main"


def test_differences_that_chance_can_explain_are_not_judged():
    runs = sound_runs()
    insert(runs["many"], (0, 1), BackwardCall, UncontrolledDraw(op="randperm", shape=[8], where="net.py:7 in forward"))
    change(runs["many"], OptimizerStep, losses=lambda event: [loss + 0.01 for loss in event.losses])
    verdicts = verdicts_of({name: runs[name] for name in ("one", "many", "reference")})
    assert verdicts["loss"].status == "NOT APPLICABLE" and "net.py:7 in forward" in verdicts["loss"].summary
    assert verdicts["determinism"].status == "NOT APPLICABLE"


# --- options ---------------------------------------------------------------------------------------------------------


def test_an_accepted_difference_keeps_its_finding():
    runs = sound_runs()
    for name in ("many", "resumed"):
        insert(runs[name], (0, 1), BackwardCall, LocalBatchNorm(rows=4, channels=3))
    verdict = verdicts_of(runs, accept=frozenset({"batchnorm"}))["batchnorm"]
    assert (verdict.status, verdict.cause) == ("ACCEPTED", "RF206")
    assert verdict.summary == "statistics of 4 of 8 samples (3 channels)"


def test_accepting_a_passed_check_changes_nothing():
    assert set(statuses_of(sound_runs(), accept=frozenset(CHECKS)).values()) == {"PASS"}


def test_an_unknown_check_cannot_be_accepted():
    with pytest.raises(ValueError, match="there is no check speed; the checks are: original, launch"):
        run_checks(sound_runs(), CheckOptions(accept=frozenset({"speed"})))


def test_the_tolerance_decides_which_values_are_equal():
    runs = sound_runs()
    change(
        runs["many"],
        OptimizerStep,
        having={"number": STEPS_PER_EPOCH * 2 - 1},
        gradients=lambda e: [[x * 1.001, y] for x, y in e.gradients],
    )
    assert failures(run_checks(runs)) == {"gradients": None}
    assert failures(run_checks(runs, CheckOptions(tolerance=0.01))) == {}


def test_four_ranks_are_compared_like_two():
    runs = {"one": run_of("one", flavour="single"), "many": run_of("many", 4), "reference": run_of("reference")}
    for rank in runs["many"].ranks:
        for event, batch in zip(events_of(runs["many"], BatchDrawn, [rank.rank]), chunks(list(range(99)), 2)):
            assert len(event.samples) <= len(batch)
    assert failures(run_checks(runs)) == {}
