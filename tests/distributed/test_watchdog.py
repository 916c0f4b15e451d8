"""A rank that never comes to a collective: every rank shows where it is, and the job ends."""

from __future__ import annotations

import re
import threading
import time

import pytest
from run_program import run_python

from retrofit.distributed.watchdog import TIMED_OUT, Watchdog, is_hang, wait_until_shown

PROGRAM = """
import sys, time
import torch
import retrofit.distributed as rd
from torch.utils.data import DataLoader


def never_comes():
    if sys.argv[1] == "sleep":
        time.sleep(1000)
    while True:
        pass


@rd.report_failure
def main():
    rd.setup_distributed()
    epochs = rd.ResumableEpochs(rd.shard_loader(DataLoader(torch.arange(30), batch_size=1, shuffle=True), seed=0))
    for number, _ in enumerate(epochs.steps()):
        if number == 2 and rd.get_rank() == 1:
            never_comes()
        rd.reduce_mean(torch.ones(3))
    rd.cleanup_distributed()


main()
"""


@pytest.mark.parametrize(("how", "world_size"), [("sleep", 3), ("loop", 2)])
def test_a_rank_that_hangs_shows_its_stack_and_its_step(tmp_path, how: str, world_size: int):
    script = tmp_path / "train.py"
    script.write_text(PROGRAM)
    launcher = ("-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={world_size}")
    started = time.monotonic()
    ended = run_python(*launcher, str(script), how, RETROFIT_DIST_TIMEOUT="4")
    assert ended.returncode == 1
    assert time.monotonic() - started < 60
    marked = {
        rank: [line for line in ended.stderr.splitlines() if line.startswith(f"[rank {rank}/{world_size}] ")]
        for rank in range(world_size)
    }
    for rank in set(range(world_size)) - {1}:
        assert marked[rank][0].endswith("waited in vain for another rank, in step 3 of epoch 1:"), ended.stderr
        assert any("in reduce_mean" in line for line in marked[rank]), ended.stderr
    assert re.search("a collective ran out of time on another rank; this one is in step 3 of epoch 1", marked[1][0])
    assert "MainThread" in marked[1][1]
    assert any("in never_comes" in line for line in marked[1]), ended.stderr
    assert not any("did not say where" in line for lines in marked.values() for line in lines)


def test_no_thread_outside_a_group_of_several():
    program = (
        "import threading, retrofit.distributed as rd\n"
        "rd.setup_distributed()\nassert threading.active_count() == 1\nrd.cleanup_distributed()\n"
        "rd.setup_distributed(__import__('argparse').Namespace(distributed=True))\n"
        "assert rd.is_distributed() and threading.active_count() == 1\nrd.cleanup_distributed()\n"
    )
    ended = run_python("-c", program)
    assert ended.returncode == 0, ended.stderr


def test_work_that_takes_longer_than_the_timeout_is_no_hang(tmp_path):
    """As when every rank validates, or loads, or saves its own for long: nobody waits for anybody meanwhile."""
    script = tmp_path / "train.py"
    script.write_text(
        "import time, torch, threading\nimport retrofit.distributed as rd\n"
        "rd.setup_distributed()\ntime.sleep(5)\nrd.reduce_mean(torch.ones(1))\n"
        "assert any(thread.name == 'retrofit-watchdog' for thread in threading.enumerate())\n"
        "rd.cleanup_distributed()\nassert threading.active_count() == 1\nprint('done', rd.get_rank())\n"
    )
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2")
    ended = run_python(*launcher, str(script), RETROFIT_DIST_TIMEOUT="2")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("done") == 2


class Store(dict):
    """What the threads of one process see of a store."""

    def add(self, key: str, number: int) -> int:
        self[key] = self.get(key, 0) + number
        return self[key]


def test_a_rank_that_cannot_answer_is_named():
    watchdog = Watchdog(Store(), 0, 3, timeout_s=0.1)
    try:
        assert watchdog.notice(timed_out=True, wait=False)
        assert watchdog.wait_until_shown() == [
            "2 rank(s) did not say where they are: gone, stopped, or in code that holds the GIL"
        ]
    finally:
        watchdog.stop()
    assert "retrofit-watchdog" not in {thread.name for thread in threading.enumerate()}


@pytest.mark.parametrize(
    ("message", "timed_out"),
    [
        ("[unbound_buffer.cc:81] Timed out waiting 4000ms for recv operation to complete", True),
        ("Rank 1 failed to pass monitoredBarrier in 4000 ms", True),
        ("save_checkpoint was called by rank 0, but not by rank 1 within 4 s; every rank must", True),
        ("[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(", True),
        ("DataLoader timed out after 5 seconds", False),
        ("Connection closed by peer [127.0.0.1]:1234", False),
        ("HTTPSConnectionPool: Read timed out.", False),
    ],
)
def test_what_a_collective_that_ran_out_of_time_says(message: str, timed_out: bool):
    assert bool(TIMED_OUT.search(message)) == timed_out


def test_without_a_group_there_is_nothing_to_ask():
    assert not is_hang(RuntimeError("Timed out waiting 4000ms for recv"), wait=True)
    assert wait_until_shown() == []
