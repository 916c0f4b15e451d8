"""A rank that never comes to a collective: every rank shows where it is, one names what is missing, the job ends."""

from __future__ import annotations

import re
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from further_cases import with_further
from run_program import run_python

from retrofit.distributed.failure.collective_calls import Journal, collective, start_journal, stop_journal
from retrofit.distributed.failure.watchdog import WAITED_IN_VAIN

# Patience and periods are a fifth of the real ones, but for `real`.
PROGRAM = """
import atexit, ctypes, os, signal, sys, time
import torch
import retrofit.distributed as rd
from retrofit.distributed.failure import deadlock, watchdog
from torch.utils.data import DataLoader

mode = sys.argv[1]
if "real" not in sys.argv:
    watchdog.PATIENCE_S = deadlock.PATIENCE_S = 1.0
    watchdog.PERIOD_S, watchdog.GRACE_S = 0.2, 1.0
if "core" in sys.argv:  # as in a project that has the runtime's core alone
    vars(watchdog.JOB_HOOKS).update(vars(watchdog.JobHooks()))
if mode == "slow end" and os.environ["RANK"] == "1":
    atexit.register(time.sleep, 60)  # of the failing rank: behind the runtime's own


def misbehave():
    open("begun", "w").write(str(time.time()))
    if mode == "sleep":
        time.sleep(1000)
    if mode == "loop":
        while True:
            pass
    if mode == "gil":
        ctypes.PyDLL(None).sleep(1000)
    if mode == "stopped":
        os.kill(os.getpid(), signal.SIGSTOP)
    if mode == "os._exit":
        os._exit(0)
    if mode == "SIGKILL":
        os.kill(os.getpid(), signal.SIGKILL)
    if mode == "SystemExit":
        sys.exit(3)
    if mode == "slow end":
        raise ValueError("an error of rank 1 alone")


def on_rank_0_alone(model, optimizer):
    if rd.is_main_process():
        open("begun", "w").write(str(time.time()))
        if mode == "save_checkpoint":
            rd.save_checkpoint(model, optimizer, 1, "c.pt")
        if mode == "reduce_mean":
            rd.collectives.reduce_mean(torch.ones(1))
        if mode == "barrier":
            rd.barrier()
        if mode == "gather_batches":
            rd.evaluation.gather_batches([1.0])


@rd.job.report_failure
def main():
    rd.setup_distributed()
    model = rd.distribute_model(torch.nn.Linear(1, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    loader = rd.distribute_loader(DataLoader(torch.arange(30.0).reshape(30, 1), batch_size=1, shuffle=True))
    for number, batch in enumerate(loader):
        if number == 2 and rd.get_rank() == 1:
            misbehave()
        if number == 2:
            on_rank_0_alone(model, optimizer)
        loss = model(batch).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        rd.reduce_loss(loss.detach())
        if number == 4:
            break
    if mode == "at the end" and rd.is_main_process():
        open("begun", "w").write(str(time.time()))
        rd.save_checkpoint(model, optimizer, 1, "c.pt")
    rd.cleanup_distributed()


try:
    main()
except SystemExit:
    atexit._run_exitfuncs()  # as the interpreter does; a rank of these tests ends without
    raise
"""


def run(launcher: Any, folder: Path, *arguments: str, world_size: int = 3, timeout_s: float = 60) -> dict[str, Any]:
    """Run the program; return statuses, outputs, and what all ranks printed with the seconds since the misbehaviour."""
    (folder / "train.py").write_text(PROGRAM)
    ended = launcher.run(folder, "train.py", list(arguments), world_size, 90, RETROFIT_DIST_TIMEOUT=str(timeout_s))
    return {**ended, "seconds": time.time() - float((folder / "begun").read_text())}


def marked(ended: dict[str, Any], rank: int) -> list[str]:
    """Return the lines that a rank has printed, without its mark."""
    mark = f"[rank {rank}/{len(ended['outputs'])}] "
    return [line[len(mark) :] for line in ended["outputs"][rank].splitlines() if line.startswith(mark)]


def conclusion(ended: dict[str, Any]) -> list[str]:
    """Return the last message, which one rank prints once all have shown themselves."""
    found = [
        lines[number:]
        for rank in range(len(ended["outputs"]))
        for lines in [marked(ended, rank)]
        for number, line in enumerate(lines)
        if re.match(r"rank \d+ waited in |.* was called by rank", line)
    ]
    assert len(found) == 1, ended["outputs"]
    return found[0]


@pytest.mark.parametrize("mode", with_further(["sleep", "loop"], "loop"))
def test_a_rank_that_hangs_shows_its_stack_and_step_and_is_ended(launcher: Any, tmp_path: Path, mode: str) -> None:
    ended = run(launcher, tmp_path, mode, timeout_s=3)
    assert ended["statuses"] == [1, 1, 1] and ended["seconds"] < 20, ended
    for rank in (0, 2):
        # One whose own wait has not run out yet joins in the alarm of the other.
        headline = r"(waited in vain for another rank, in|the job cannot continue; this rank is in) batch 3 of epoch 1"
        assert re.match(headline, marked(ended, rank)[0]), ended["outputs"]
        assert any("in main" in line for line in marked(ended, rank))
    hung = marked(ended, 1)
    assert hung[0].endswith("this rank is in batch 3 of epoch 1, here:") and hung[1].startswith("  File")
    assert any("in misbehave" in line for line in hung), ended["outputs"]
    first, *missing = conclusion(ended)
    assert re.match(r"rank [02] waited in \S+ \(.*train.py:\d+\) for a rank that is missing", first)
    named = r"rank 1 did not come, it is in misbehave \(.*:\d+\); its step is batch 3 of epoch 1"
    assert any(re.match(named, line) for line in missing), ended["outputs"]


@pytest.mark.parametrize("mode", ["stopped", "gil"])
def test_a_rank_without_a_stack_is_named_and_killed(launcher: Any, tmp_path: Path, mode: str) -> None:
    ended = run(launcher, tmp_path, mode, world_size=2, timeout_s=3)
    assert ended["statuses"] == [1, -9] and ended["seconds"] < 20
    _, second, third = conclusion(ended)
    assert re.match(r"rank 1 does not answer: process \d+ on \S+, at its end, killed or stopped, last seen in ", second)
    assert re.match(r"rank 1, process \d+, was stopped or kept the GIL: it has been killed", third)


@pytest.mark.parametrize(
    ("mode", "status", "word"),
    [
        ("os._exit", 0, r"rank 1 does not answer: process \d+ on \S+, at its end, killed or stopped, last seen in "),
        (
            "SIGKILL",
            -9,
            r"rank 1 does not answer: process \d+ on \S+, at its end, killed or stopped, .*; its step was ",
        ),
        (
            "SystemExit",
            3,
            r"rank 1 has ended by SystemExit\(3\) in misbehave \(.*train.py:\d+\); its step was batch 3 ",
        ),
    ],
)
def test_a_rank_that_vanishes_is_named(launcher: Any, tmp_path: Path, mode: str, status: int, word: str) -> None:
    ended = run(launcher, tmp_path, mode)
    assert ended["statuses"] == [1, status, 1] and ended["seconds"] < 20
    for rank in (0, 2):
        lines = marked(ended, rank)
        assert re.search("in batch 3 of epoch 1", lines[0]) and any("train.py" in line for line in lines)
    first, second, *third = conclusion(ended)
    assert "waited in main" in first and re.match(word, second), ended["outputs"]
    gone = r"rank 1, process \d+, is gone: it ended without a word \(killed, out of memory, os._exit\)"
    assert len(third) == (mode != "SystemExit") and all(re.fullmatch(gone, line) for line in third), third


def test_in_a_converted_script_a_killed_rank_is_named_too(launcher: Any, tmp_path: Path) -> None:
    ended = run(launcher, tmp_path, "SIGKILL", "core")
    assert ended["statuses"] == [1, -9, 1] and ended["seconds"] < 20
    first, second = conclusion(ended)
    assert "waited in main" in first and second.startswith("rank 1 does not answer: process "), ended["outputs"]


def test_a_failed_rank_that_is_slow_to_end_stops_the_others(launcher: Any, tmp_path: Path) -> None:
    ended = run(launcher, tmp_path, "slow end")
    assert "ValueError: an error of rank 1 alone" in marked(ended, 1)
    said = [marked(ended, rank) for rank in (0, 2)]
    assert [ended["statuses"][rank] for rank in (0, 2)] == [1, 1] and ended["seconds"] < 20, ended["outputs"]
    # The first one to stop ends the other's connection.
    assert all(len(lines) == 1 and lines[0].startswith("stopped: rank 1 failed first, see its") for lines in said), said
    assert any("(its process has not ended yet)" in line for lines in said for line in lines)


VANISHES = """
import os, signal, time
import retrofit.distributed as rd
rd.setup_distributed()
if rd.get_rank() == 1:
    os.kill(os.getpid(), signal.SIGKILL)
if rd.get_rank() == 2:
    time.sleep(60)  # in no collective: the launcher's SIGTERM is all that it learns
rd.barrier()
"""


@pytest.mark.usefixtures("forked_python")
def test_a_failed_rank_is_named_under_torchrun_too(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(VANISHES)
    started = time.monotonic()
    launch = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node=3", str(tmp_path / "train.py"))
    ended = run_python(*launch)
    assert ended.returncode == 1 and time.monotonic() - started < 55
    lines = [line for line in ended.stderr.splitlines() if line.startswith("[rank ")]
    for rank in (0, 2):
        own = [line for line in lines if line.startswith(f"[rank {rank}/3]")]
        assert any("what precedes the first step" in line for line in own), ended.stderr
        assert any("train.py" in line for line in own), ended.stderr
    assert "rank 1 does not answer: process" in lines[-2] and "for a rank that is missing" in lines[-3], ended.stderr
    assert re.search(r"rank 1, process \d+, is gone: it ended without a word", lines[-1]), ended.stderr
    assert "NoneType: None" not in ended.stderr  # torchrun's own report repeats what was said last


# Of reduce_mean: one number on rank 0, next to DDP's two on the others, at which gloo would abort were it one group.
@pytest.mark.parametrize(
    "mode", with_further(["reduce_mean", "barrier", "gather_batches", "at the end"], "gather_batches", "barrier")
)
def test_a_collective_under_a_rank_guard_is_named_with_its_line(launcher: Any, tmp_path: Path, mode: str) -> None:
    ended = run(launcher, tmp_path, mode, timeout_s=600)
    assert ended["statuses"] == [1, 1, 1], ended["outputs"]
    name = "save_checkpoint" if mode == "at the end" else mode
    call = {"gather_batches": "rd.evaluation.gather_batches([1.0])", "barrier": "rd.barrier()"}.get(mode, f"{name}(")
    lines = [number for number, line in enumerate(PROGRAM.splitlines(), start=1) if call in line]
    line = lines[-1] if mode == "at the end" else lines[0]
    first, *others = conclusion(ended)
    assert re.match(rf"{name} was called by rank 0 at .*train.py:{line}, but not by ranks 1, 2; every rank must", first)
    assert "take it out of `if is_main_process():`" in first
    assert all(
        re.match(r"rank [12] (went past it and waits in main|called cleanup_distributed)", o) for o in others[:2]
    )


def test_save_checkpoint_on_rank_0_alone_is_reported_within_20_seconds(launcher: Any, tmp_path: Path) -> None:
    ended = run(launcher, tmp_path, "save_checkpoint", "real", world_size=2, timeout_s=1800)
    assert ended["statuses"] == [1, 1] and ended["seconds"] < 20, ended
    assert conclusion(ended)[0].startswith("save_checkpoint was called by rank 0 at ")
    assert not (tmp_path / "c.pt").exists()


SLOW = """
import time
import torch
import retrofit.distributed as rd
from retrofit.distributed.failure import deadlock, watchdog

watchdog.PATIENCE_S = deadlock.PATIENCE_S = 0.5
watchdog.PERIOD_S = 0.1
SLOW_S = 2.0


def busy():
    end = time.time() + SLOW_S
    while time.time() < end:
        torch.rand(50, 50) @ torch.rand(50, 50)


class Slow(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        time.sleep(SLOW_S)
        return gradient


@rd.job.report_failure
def main():
    rd.setup_distributed()
    last = rd.get_rank() == rd.get_world_size() - 1
    model = rd.distribute_model(torch.nn.Linear(1, 1))
    model(torch.ones(1, 1)).sum().backward()
    if last:
        time.sleep(SLOW_S)  # loads
    rd.collectives.reduce_mean(torch.ones(1))
    with rd.output.main_process_first():
        if rd.is_main_process():
            busy()  # downloads and unpacks
    output = model(torch.ones(1, 1))
    (Slow.apply(output) if last else output).sum().backward()  # a slow backward, the others wait in theirs
    if rd.is_main_process():
        with torch.no_grad():
            model(torch.ones(1, 1))  # evaluates alone
        busy()
    rd.collectives.gather_objects(1)
    if rd.is_main_process():
        rd.collectives.broadcast_object(1)
    else:
        rd.collectives.broadcast_object(None)  # at another line, but of the same kind
    rd.cleanup_distributed()
    print("done")


main()
"""


def test_a_slow_rank_is_not_a_hang(launcher: Any, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SLOW)
    ended = launcher.run(tmp_path, "train.py", [], 3, 120)
    assert ended["statuses"] == [0, 0, 0], ended["outputs"]
    assert all(text.endswith("done\n") and "[rank " not in text for text in ended["outputs"])


PREEMPTED = """
import multiprocessing, os, signal, sys, time
import retrofit.distributed as rd
rd.setup_distributed()
child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(100,))
child.start()
child.terminate()  # a signal that is none of ours
child.join()
assert child.exitcode == -signal.SIGTERM
rd.barrier()
if sys.argv[1] == "own":
    signal.signal(signal.SIGTERM, lambda *_: os._exit(7))
os.kill(os.getpid(), signal.SIGTERM)
time.sleep(100)
"""


@pytest.mark.parametrize(("handler", "status"), [("none", -15), ("own", 7)])
def test_sigterm_for_all_ranks_ends_them_as_before(launcher: Any, tmp_path: Path, handler: str, status: int) -> None:
    (tmp_path / "train.py").write_text(PREEMPTED)
    ended = launcher.run(tmp_path, "train.py", [handler], 2, 60)
    assert ended["statuses"] == [status, status] and ended["seconds"] < 30, ended
    assert not any("[rank " in text for text in ended["outputs"])


def test_without_several_ranks_no_thread_is_started(launcher: Any, tmp_path: Path) -> None:
    program = (
        "import threading, retrofit.distributed as rd\n"
        "rd.setup_distributed()\nassert threading.active_count() == 1\nrd.cleanup_distributed()\n"
        "rd.setup_distributed(__import__('argparse').Namespace(distributed=True))\n"
        "assert rd.process_group.is_distributed() and threading.active_count() == 1\nrd.cleanup_distributed()\n"
    )
    (tmp_path / "program.py").write_text(program)
    ended = launcher.run(tmp_path, "program.py", [])
    assert ended["statuses"] == [0], ended["outputs"]


def test_the_journal_names_the_outermost_call_and_is_cheap() -> None:
    @collective
    def inner() -> None:
        return

    @collective
    def outer() -> None:
        inner()

    journal = start_journal(lambda: (1, 2))
    try:
        outer()
        other = threading.Thread(target=inner)  # not the main thread's matter
        other.start()
        other.join()
        assert [(call.number, call.name) for call in journal.calls] == [(0, "outer")]
        assert journal.calls[0].site.startswith(f"{__file__}:") and journal.open is None and journal.finished == 1
        started = time.perf_counter()
        for _ in range(2000):
            inner()
        assert (time.perf_counter() - started) / 2000 < 100e-6  # without the counters of a group
    finally:
        stop_journal()
    inner()
    assert isinstance(journal, Journal) and journal.finished == 2001


@pytest.mark.parametrize(
    ("message", "waited"),
    [
        ("[unbound_buffer.cc:81] Timed out waiting 4000ms for recv operation to complete", True),
        ("[pair.cc:553] Application timeout caused pair closure", True),
        ("Rank 1 failed to pass monitoredBarrier in 4000 ms", True),
        ("save_checkpoint was called by rank 0, but not by rank 1 within 4 s; every rank must", True),
        ("[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(", True),
        ("DataLoader timed out after 5 seconds", False),
        ("Connection closed by peer [127.0.0.1]:1234", True),
        ("Read error [127.0.0.1]:1234: Connection reset by peer", True),
        ("HTTPSConnectionPool: Read timed out.", False),
    ],
)
def test_timeout_and_lost_peer_messages_are_recognised(message: str, waited: bool) -> None:
    assert bool(WAITED_IN_VAIN.search(message)) == waited
