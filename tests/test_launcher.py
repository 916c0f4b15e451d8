"""How a job ends that retrofit/distributed/launcher.py started: after a signal, and when a rank fails.

Real launchers of torch and real terminals; the ranks are small scripts without torch.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

DRIVER = Path(__file__).parent / "launcher_driver.py"
RANKS = """
import os, signal, sys, time
mode, rank = sys.argv[1], int(os.environ["RANK"])

def tell(text):
    os.write(1, f"{text}\\n".encode())  # in one piece: two ranks write at the same time

received = []
def note(number, frame):
    received.append(number)

if mode == "saves":  # as a training that stops at the next step and saves
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, note)
if mode == "ignores":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
tell("training")
if mode == "fails" and rank == 1:
    tell("[rank 1/2] ValueError: no such file")
    sys.exit(1)
if mode == "killed" and rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
end = time.monotonic() + 40
while not received and time.monotonic() < end:
    time.sleep(0.02)
if received:
    time.sleep(1.5)  # to save, longer than it takes a terminal and a job manager to send the same signal twice
    if rank == 0:
        tell(f"interrupted by {len(received)}, saved")
    sys.exit(0 if received[0] == signal.SIGINT else 128 + received[0])
"""
CTRL_C = {"signal": "Ctrl-C", "when": "training", "times": 2}
CASES: dict[str, dict[str, Any]] = {
    "saves": {"mode": "saves", "signals": [CTRL_C]},
    "saves, at the start": {"mode": "saves", "signals": [CTRL_C], "slow_start_s": 1.0},
    "saves, told by kill": {"mode": "saves", "signals": [{**CTRL_C, "signal": "SIGINT"}]},
    "preempted": {"mode": "saves", "signals": [{**CTRL_C, "signal": "SIGTERM"}], "restarts": 3},
    "preempted at the start": {
        "mode": "saves",
        "signals": [{**CTRL_C, "signal": "SIGTERM"}],
        "restarts": 3,
        "slow_start_s": 2.0,
    },
    "hung up": {"mode": "saves", "signals": [{**CTRL_C, "signal": "SIGHUP"}]},
    "sent twice": {"mode": "saves", "signals": [{**CTRL_C, "signal": "SIGTERM", "sent": 2}]},
    "does not save": {"mode": "plain", "signals": [CTRL_C], "restarts": 3},
    "ignores": {
        "mode": "ignores",
        "signals": [
            CTRL_C,
            {"signal": "Ctrl-C", "when": "again stops them", "wait_s": 1.2},
            {"signal": "Ctrl-C", "when": "<KEY>", "times": 2, "wait_s": 1.2},
        ],
    },
    "fails": {"mode": "fails"},
    "killed": {"mode": "killed"},
}


class Ended(NamedTuple):
    status: int
    seconds: float
    output: str

    @property
    def last(self) -> list[str]:
        """The lines after the last key or signal."""
        return [line for line in self.output.rpartition("<KEY>\n")[2].splitlines() if line]


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ended]:
    ranks = tmp_path_factory.mktemp("ranks") / "ranks.py"
    ranks.write_text(RANKS)
    result = subprocess.run(
        [sys.executable, str(DRIVER), str(ranks)], input=json.dumps(CASES), capture_output=True, text=True, timeout=580
    )
    assert result.returncode == 0, result.stderr
    return {name: Ended(*case) for name, case in json.loads(result.stdout).items()}


WAITING = "[launcher] waiting for the ranks to stop; Ctrl-C again stops them within 30 seconds"


@pytest.mark.parametrize("case", ["saves", "saves, at the start", "saves, told by kill"])
def test_ctrl_c_ends_with_the_message_and_the_status_of_the_ranks(ended: dict[str, Ended], case: str) -> None:
    assert [line for line in ended[case].last if line != "^C"] == [WAITING, "interrupted by 1, saved"]
    assert ended[case].status == 0


@pytest.mark.parametrize(
    ("case", "status", "line"),
    [
        ("preempted", 143, "SIGTERM"),
        ("preempted at the start", 143, "SIGTERM"),
        ("hung up", 129, "SIGHUP"),
        ("sent twice", 143, "SIGTERM"),
    ],
)
def test_the_ranks_have_time_to_save_and_are_not_started_again(
    ended: dict[str, Ended], case: str, status: int, line: str
) -> None:
    assert (ended[case].status, ended[case].last[0][:14]) == (status, "interrupted by")
    # Whoever hung up has no terminal to print on.
    assert ended[case].last[1:] in ([f"[launcher] stopped by {line}"], [] if line == "SIGHUP" else None)
    assert ended[case].output.count("training") == 2


def test_ranks_that_do_not_handle_ctrl_c_end_and_are_not_started_again(ended: dict[str, Ended]) -> None:
    case = ended["does not save"]
    assert case.status == 130 and case.last[-1] == "[launcher] stopped by SIGINT"
    assert case.output.splitlines().count("training") == 2  # a traceback may show the line that prints it
    assert "SignalException" not in case.output and "torch/distributed" not in case.output


def test_a_second_ctrl_c_ends_ranks_that_hang(ended: dict[str, Ended]) -> None:
    case = ended["ignores"]
    assert case.status == 130 and case.last[-1] == "[launcher] stopped by SIGINT"
    assert case.seconds < 20 and "Traceback" not in case.output


def test_a_failed_rank_is_named_last_without_a_traceback_of_the_launcher(ended: dict[str, Ended]) -> None:
    failed, killed = ended["fails"], ended["killed"]
    assert (failed.status, killed.status) == (1, 1)
    assert re.fullmatch(
        r"\[launcher\] the job has failed: rank 1 \(local rank 1, process \d+\) ended with exit status 1; "
        "its message is above",
        failed.last[-1],
    )
    assert re.search(r"rank 1 .* was killed by SIGKILL; often that is the system, out of memory", killed.last[-1])
    for case in (failed, killed):
        assert "Traceback" not in case.output and "ChildFailedError" not in case.output


def test_without_arguments_it_says_what_to_name() -> None:
    command = [sys.executable, str(Path(__file__).parents[1] / "retrofit" / "convert" / "added" / "multigpu.py")]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert ended.returncode == 2 and "Traceback" not in ended.stderr
    assert "[launcher] name a launcher and its arguments" in ended.stderr
