"""Files that one rank reads while another one may be writing them."""

from __future__ import annotations

import pytest
from verify_evidence import OptimizerStep, change, collective_call, cut, failures, insert, sound_runs, spoil

from retrofit.verify.checks import run_checks
from retrofit.verify.trace.events import CollectiveCall, FileChange, FileLock, FileRead, IterationStart, ProcessExit

NOT_RESTARTED = ("resumed", "reload", "reload_original")


def read_by_rank_1(runs, **values):
    """Rank 1 reads the checkpoint after the first epoch, which rank 0 writes there."""
    event = spoil(FileRead("runs/last.pt", "train.py:90 in main", waited=False), **values)
    insert(runs["many"], [1], IterationStart, event, number=2)


def read_after_a_barrier(runs):
    read_by_rank_1(runs)
    for rank in (0, 1):
        insert(runs["many"], [rank], FileRead if rank else IterationStart, barrier(), number=0 if rank else 2)


def barrier():
    return collective_call("barrier", 1, "uint8", in_backward=False)


def read_with_other_calls(runs):
    """The calls of the ranks cannot be paired."""
    read_by_rank_1(runs)
    change(runs["many"], CollectiveCall, [1], {"numel": 2}, op="recv_")


READS = {
    "early": (read_by_rank_1, True),
    "after a barrier": (read_after_a_barrier, False),
    "after a sleep": (lambda runs: read_by_rank_1(runs, waited=True), False),
    "another file": (lambda runs: read_by_rank_1(runs, path="runs/args.json"), False),
    "calls that cannot be paired": (read_with_other_calls, False),
}


@pytest.mark.parametrize("name", READS)
def test_a_file_is_read_when_it_is_there(name: str) -> None:
    runs = sound_runs()
    spoil_runs, is_fault = READS[name]
    spoil_runs(runs)
    verdict = next(verdict for verdict in run_checks(runs) if verdict.check == "single_writer")
    assert (verdict.status == "FAIL", verdict.cause) == (is_fault, "RF508" if is_fault else None)
    assert not is_fault or verdict.place == "train.py:90 in main"


def test_a_rank_that_does_not_find_what_another_one_writes_reads_too_early() -> None:
    runs = sound_runs()
    for name in NOT_RESTARTED:
        del runs[name]
    missing = ("FileNotFoundError", "[Errno 2] No such file or directory: 'runs/last.pt'")
    cut(runs["many"], 1, OptimizerStep, 3, 1, missing)
    cut(runs["many"], 0, ProcessExit, 0, 1, ("RuntimeError", "[gloo/pair.cc:534] Connection closed by peer"))
    assert failures(run_checks(runs))["completes"] == "RF508"


@pytest.mark.parametrize("is_empty", [True, False])
def test_a_file_that_is_there_to_be_locked_may_be_written_by_all(is_empty: bool) -> None:
    runs = sound_runs()
    for rank in (0, 1):
        for event in (FileChange("write", "runs/queue"), FileLock("runs/queue", is_empty)):
            insert(runs["many"], [rank], IterationStart, event)
    verdict = next(verdict for verdict in run_checks(runs) if verdict.check == "single_writer")
    assert verdict.status == ("PASS" if is_empty else "FAIL")
