"""The batch mode in which a user starts a script: a larger batch than the one that is compared."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from verify_command import judge
from verify_evidence import change, cut, redraw, remove, run_of, sound_runs
from verify_plain_script import ARGUMENTS, OPTIONS, write_script

from retrofit.verify.checks import CheckOptions, run_checks
from retrofit.verify.runs.launches import options_in_environment
from retrofit.verify.source.batch_mode import keeps_batch, steps_of_user_mode
from retrofit.verify.trace.events import IterationStart, OptimizerFound, OptimizerStep

sys.path.insert(0, str(Path(__file__).parent / "verify"))

from bugs.catalogue import BUGS, copy_project, seed_bug


def found(runs, **options):
    verdicts = {verdict.check: verdict for verdict in run_checks(runs, CheckOptions(**options))}
    failed = {check for check, verdict in verdicts.items() if verdict.status == "FAIL"}
    assert failed <= {"default_mode"}, failed
    return verdicts["default_mode"]


def test_a_larger_batch_is_named_as_such():
    verdict = found(sound_runs(), uses_runtime=True)
    assert verdict.status == "PASS"
    expected = "larger batch, by design: 2 times as many samples per step (16); learning rate x 2 (linear rule)"
    assert verdict.summary == expected


def test_without_the_run_nothing_is_judged():
    runs = sound_runs()
    del runs["default"]
    verdict = found(runs)
    assert verdict.status == "NOT APPLICABLE" and "the one that was compared" in verdict.summary


def test_the_same_batch_is_said_to_be_the_same():
    runs = {**sound_runs(), "default": run_of("default", 2)}
    assert found(runs).summary.startswith("the same batch as the one that was compared")


def rate_of_no_rule(run):
    change(run, OptimizerFound, base_lr=[0.4])


def same_samples(run):
    redraw(run, lambda rank, epoch: list(range(16)), 16)


def weights_apart(run):
    change(run, OptimizerStep, [1], parameter_hash="other", parameter_hashes=["other", "same"])


def a_step_less(run):
    remove(run, OptimizerStep, [1], number=1)


def an_error(run):
    cut(run, 1, IterationStart, 1, 1, ("ValueError", "last batch of 3"))


FAULTS = [
    (rate_of_no_rule, "the learning rate is 4 times"),
    (same_samples, "all ranks train on the same"),
    (weights_apart, ""),
    (a_step_less, "different numbers of optimizer steps"),
    (an_error, "failed on rank 1"),
]


@pytest.mark.parametrize(("spoil", "words"), FAULTS, ids=[spoil.__name__ for spoil, _ in FAULTS])
def test_a_fault_of_this_mode_alone_is_found(spoil, words):
    runs = sound_runs()
    spoil(runs["default"])
    verdict = found(runs, uses_runtime=True)
    assert verdict.status == "FAIL" and verdict.summary.startswith("as you start it") and words in verdict.summary


def test_a_mode_that_the_runtime_refuses_is_not_judged():
    runs = sound_runs()
    message = "this rank has drawn all its batches of a loader; RETROFIT_BATCH=global gives as many as one process has"
    cut(runs["default"], 1, IterationStart, 1, 1, ("StopIteration", message))
    verdict = found(runs)
    assert verdict.status == "NOT APPLICABLE" and message in verdict.summary


def test_data_for_less_than_a_larger_batch_are_not_judged():
    runs = sound_runs()
    runs = {name: runs[name] for name in ("one", "many", "default")}
    for run in runs.values():
        change(run, IterationStart, having={"grad_enabled": True}, length=15)
    an_error(runs["default"])
    assert found(runs).status == "NOT APPLICABLE"


def test_a_fault_of_both_modes_is_found_in_the_compared_one():
    runs = sound_runs()
    for name, size in (("many", 4), ("default", 8)):
        redraw(runs[name], lambda rank, epoch: list(range(8)), size)
    verdicts = {verdict.check: verdict.status for verdict in run_checks(runs)}
    assert verdicts["shards"] == "FAIL" and verdicts["default_mode"] == "PASS"


def test_a_rate_of_a_script_without_the_runtime_is_reported():
    runs = sound_runs()
    rate_of_no_rule(runs["default"])
    assert "learning rate x 4" in found(runs).summary


def test_a_schedule_without_a_scheduler_is_not_judged():
    runs = sound_runs()
    for name in ("one", "default"):
        change(runs[name], OptimizerFound, base_lr=[None])
    verdict = found(runs, uses_runtime=True)
    assert verdict.status == "PASS" and "schedule of the script's own" in verdict.summary


@pytest.mark.parametrize(
    ("flag", "arguments", "environ", "expected"),
    [
        ("batch_size", [], {}, "with batch_size divided by 2"),
        ("--batch_size", [], {}, "with batch_size divided by 2"),
        (None, ["--epochs", "2"], {}, "with the global batch kept (RETROFIT_BATCH=global)"),
        (None, ["--dist_batch", "global"], {}, ""),
        (None, ["--batch=global"], {}, ""),
        (None, [], {"RETROFIT_BATCH": "global"}, ""),
    ],
)
def test_what_keeps_the_batch(flag, arguments, environ, expected, tmp_path):
    (tmp_path / "train.py").write_text("import retrofit.distributed as rd\n")
    assert keeps_batch(flag, 2, tmp_path, arguments, environ) == expected


def test_a_script_without_the_runtime_has_one_mode(tmp_path):
    (tmp_path / "train.py").write_text("import torch\n")
    assert keeps_batch(None, 2, tmp_path, [], {}) == ""


def test_this_mode_takes_few_steps():
    assert [steps_of_user_mode(steps) for steps in (0, 1, 20, 100)] == [10, 2, 10, 50]


@pytest.mark.usefixtures("forked_python")
def test_a_rate_that_is_scaled_twice_shows_only_as_the_user_starts_it(tmp_path):
    bug = next(bug for bug in BUGS if bug.id == "17c")
    seed_bug(bug, tmp_path)
    status, report = judge(tmp_path, bug.verify_options, bug.arguments)
    failed = {verdict["check"]: verdict["cause"] for verdict in report["verdicts"] if verdict["status"] == "FAIL"}
    assert status == 1 and failed == {"default_mode": "RF304"}


@pytest.mark.usefixtures("forked_python")
def test_ranks_that_draw_the_same_with_an_undivided_batch_are_found(tmp_path):
    """With the batch undivided all ranks take the part of rank 0."""
    write_script(
        tmp_path,
        (
            "    loader = DataLoader(train,",
            "    if world > 1 and args.batch_size == 16:\n"
            "        sampler = DistributedSampler(train, world, 0)\n"
            "    loader = DataLoader(train,",
        ),
    )
    status, report = judge(tmp_path, OPTIONS, ARGUMENTS)
    failed = {verdict["check"]: verdict["cause"] for verdict in report["verdicts"] if verdict["status"] == "FAIL"}
    assert status == 1 and failed == {"default_mode": "RF103"}


@pytest.mark.usefixtures("forked_python")
def test_the_conclusion_names_what_keeps_the_batch(tmp_path):
    write_script(tmp_path)
    status, report = judge(tmp_path, OPTIONS, ARGUMENTS)
    assert status == 0
    assert report["conclusion"].startswith("PASS: with batch_size divided by 2, 2 processes train the same model as 1")
    assert "default" in [run["name"] for run in report["runs"]]


def test_options_of_the_runtime_in_the_environment_count_in_the_runs():
    environ = {"RETROFIT_STRATEGY": "fsdp", "RETROFIT_BATCH": "global", "RETROFIT_DIST_URL": "env://", "RANK": "1"}
    assert options_in_environment(environ) == {"RETROFIT_STRATEGY": "fsdp"}


@pytest.mark.usefixtures("forked_python")
def test_a_script_that_is_sharded_by_the_environment_is_judged_sharded(tmp_path, monkeypatch):
    copy_project("classifier", tmp_path)
    monkeypatch.setenv("RETROFIT_STRATEGY", "fsdp")
    status, report = judge(tmp_path, ["--nproc", "2"], ["--epochs", "2"])
    assert status == 0, report["conclusion"]
    assert "RETROFIT_STRATEGY=fsdp" in str(report["runs"])
