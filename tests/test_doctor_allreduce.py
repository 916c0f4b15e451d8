"""The all-reduce test of `retrofit doctor`: real processes that add up, hang, die and look for the wrong interface."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil
import pytest
import torch
import torch.distributed as dist

from retrofit.doctor.finding import FAIL, OK, SKIP, WARN, Finding, Plan
from retrofit.doctor.gpu.torch_facts import TorchFacts
from retrofit.doctor.network import allreduce, allreduce_findings, allreduce_worker
from retrofit.doctor.network.allreduce import Measured, Outcome, all_reduce, read_outcome, worker_environment
from retrofit.doctor.network.allreduce_findings import backends_to_test, check_all_reduce, ranks_to_start, telling_lines
from retrofit.doctor.network.interfaces import Interface, read_interfaces

PATIENCE_S = 200.0  # for a busy machine
LO, ETH = Interface("lo", True, ("127.0.0.1",)), Interface("eth0", True, ("10.0.0.5",))


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[subprocess.Popen]:
    """The processes that the test under test starts."""
    processes: list[subprocess.Popen] = []
    start = allreduce._start

    def recorded(*arguments: object) -> subprocess.Popen:
        processes.append(start(*arguments))  # type: ignore[arg-type]
        return processes[-1]

    monkeypatch.setattr(allreduce, "_start", recorded)
    return processes


def test_three_processes_add_up(started: list[subprocess.Popen]) -> None:
    said: list[str] = []
    found, outcome = check_all_reduce("gloo", 3, read_interfaces(), said.append, PATIENCE_S)
    assert found.status == OK and "all sums exact" in found.value and "GB/s" in found.value
    assert outcome is not None and [log.phase for log in outcome.ranks] == ["done"] * 3
    assert [one.num_bytes for one in outcome.measured] == [2**10, 2**15, 2**20, 2**24, 2**26]
    assert all(0 < one.seconds < 60 for one in outcome.measured)
    assert outcome.addresses, "gloo's connections were not seen"
    assert len(said) == 1 and "3 processes over gloo" in said[0]
    assert [process.returncode for process in started] == [0, 0, 0]


def test_bus_bandwidth_is_that_of_nccl_tests() -> None:
    # 2(n-1)/n * bytes / time: 1 GB in 1 s is 1 GB/s on two ranks, 1.75 GB/s on eight.
    assert Measured(10**9, 1.0).bus_bandwidth(2) == 1.0
    assert Measured(10**9, 1.0).bus_bandwidth(8) == 1.75


def test_a_process_that_is_stopped_is_found_and_ended(
    started: list[subprocess.Popen], monkeypatch: pytest.MonkeyPatch
) -> None:
    start = allreduce._start

    def stopping(*arguments: object) -> subprocess.Popen:
        process = start(*arguments)  # type: ignore[arg-type]
        if len(started) == 2:
            os.kill(process.pid, signal.SIGSTOP)
        return process

    monkeypatch.setattr(allreduce, "_start", stopping)
    outcome = all_reduce("gloo", 2, deadline_s=14.0)
    assert re.fullmatch(r"no end within 14 s \(rank 0: (join the group|import torch); rank 1: start\)", outcome.problem)
    assert any("hangs in" in line for line in telling_lines(outcome.ranks[0].output)), outcome.ranks[0].output
    assert not any(psutil.pid_exists(process.pid) for process in started)


def test_a_process_that_dies_ends_the_test_at_once(
    started: list[subprocess.Popen], monkeypatch: pytest.MonkeyPatch
) -> None:
    start = allreduce._start

    def killing(*arguments: object) -> subprocess.Popen:
        process = start(*arguments)  # type: ignore[arg-type]
        if len(started) == 2:
            process.kill()
        return process

    monkeypatch.setattr(allreduce, "_start", killing)
    outcome = all_reduce("gloo", 2, PATIENCE_S)
    assert outcome.problem == "rank 1 was killed by SIGKILL at: start"
    assert outcome.ranks[0].status is None  # it did not have to wait for its deadline
    assert not any(psutil.pid_exists(process.pid) for process in started)


def test_the_wrong_interface_is_named_as_the_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "nosuch")
    said: list[str] = []
    found, outcome = check_all_reduce("gloo", 2, read_interfaces(), said.append, PATIENCE_S)
    assert found.status == FAIL and "Unable to find address for: nosuch" in found.value
    assert found.remedy.startswith("it works with GLOO_SOCKET_IFNAME=lo: gloo talks over the wrong interface")
    assert outcome is not None and outcome.problem and len(said) == 2


def test_nccl_without_a_gpu_fails_with_its_message_and_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    outcome = all_reduce("nccl", 2, PATIENCE_S)
    assert list(tmp_path.iterdir()) == []
    assert "at: open GPU" in outcome.problem
    assert any("NVIDIA" in line or "CUDA" in line for line in telling_lines(outcome.ranks[0].output))


def test_one_process_is_not_tested() -> None:
    found, outcome = check_all_reduce("gloo", 1, [LO], lambda text: None)
    assert found.status == SKIP and outcome is None


def test_sums_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two ranks' sums, made by hand: one process is enough to see whether a wrong one is found."""

    def right(tensor: torch.Tensor) -> None:
        tensor.add_(tensor + 1)  # this rank is 0; rank 1 has one more everywhere

    def wrong(tensor: torch.Tensor) -> None:
        right(tensor)
        tensor[2000] += 1

    device = torch.device("cpu")
    monkeypatch.setattr(dist, "all_reduce", right)
    assert allreduce_worker.wrong_sums(4096, 0, 2, device) == ""
    monkeypatch.setattr(dist, "all_reduce", wrong)
    value = 2 * (2000 % 1009) + 1
    told = f"1 of 4096 sums differ, first at 2000: {value + 1}.0 instead of {value}.0"
    assert allreduce_worker.wrong_sums(4096, 0, 2, device) == told
    logs = [f'doctor: {{"num_bytes": 1024, "wrong": "{told}", "seconds": 1.0}}']
    assert read_outcome([0], None, logs, 60.0).problem == f"wrong sums: rank 0: {told}"


def test_launcher_variables_of_the_user_do_not_reach_the_processes() -> None:
    environ = {
        **{"RANK": "7", "WORLD_SIZE": "64", "MASTER_ADDR": "far", "TORCHELASTIC_RUN_ID": "x", "SLURM_PROCID": "7"},
        **{"GLOO_SOCKET_IFNAME": "eth3", "NCCL_DEBUG": "INFO"},
    }
    told = worker_environment(environ, 1, 2, 4711, {"NCCL_P2P_DISABLE": "1"})
    assert told == {
        **{"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "4711"},
        **{"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "eth3", "NCCL_DEBUG": "INFO", "NCCL_P2P_DISABLE": "1"},
    }


def test_the_slowest_rank_counts() -> None:
    logs = ['doctor: {"num_bytes": 1024, "seconds": 1.0}', 'doctor: {"num_bytes": 1024, "seconds": 2.0}\nnoise']
    outcome = read_outcome([0, 0], None, logs, 60.0)
    assert outcome.measured == [Measured(1024, 2.0)] and outcome.ranks[1].output == "noise" and not outcome.problem


def test_an_error_text_has_messages_and_no_stack_frames() -> None:
    hanging = """[W1121 10:17:25.796276118 socket.cpp:764] [c10d] refused
Timeout (0:00:08)!
Thread 0x00007f (most recent call first):
  File "/lib/torch/distributed_c10d.py", line 2834 in all_reduce
  File "/lib/torch/c10d_logger.py", line 83 in wrapper
  File "/lib/worker.py", line 80 in wrong_sums
  File "/lib/worker.py", line 50 in main
"""
    where = "all_reduce (distributed_c10d.py:2834), called from wrapper (c10d_logger.py:83)"
    where += ", called from wrong_sums (worker.py:80)"
    assert telling_lines(hanging) == ["[W socket.cpp:764] [c10d] refused", f"hangs in {where}"]
    failing = """Traceback (most recent call last):
  File "/lib/worker.py", line 50, in main
    join()
    ^^^^^^
RuntimeError: no such interface
Exception raised from connect at socket.cpp:1
frame #0: c10::Error()
"""
    assert telling_lines(failing) == ["RuntimeError: no such interface"]


def test_a_large_plan_does_not_flood_a_small_machine() -> None:
    assert ranks_to_start(Plan(ranks=64), cores=4, num_gpus=0) == 4
    assert ranks_to_start(Plan(ranks=8), cores=1, num_gpus=0) == 2
    assert ranks_to_start(Plan(ranks=8), cores=4, num_gpus=8) == 8
    assert ranks_to_start(Plan(ranks=1), cores=4, num_gpus=8) == 1


def test_backends_that_are_tested() -> None:
    both = ["gloo", "nccl"]
    assert backends_to_test(Plan(ranks=2), TorchFacts(backends=both)) == ["gloo"]
    assert backends_to_test(Plan(ranks=2), TorchFacts(backends=both, num_gpus=1)) == ["gloo"]  # nccl: a GPU each
    assert backends_to_test(Plan(ranks=2), TorchFacts(backends=both, num_gpus=2)) == both
    assert backends_to_test(Plan(ranks=2), TorchFacts()) == []


# No GPU is needed for what follows: how nccl's outcomes are judged. The outcomes are made by hand.
def _nccl(monkeypatch: pytest.MonkeyPatch, good: Mapping[str, str] | None, seconds: float = 1e-3) -> Finding:
    """Return the finding on a machine where nccl works with the settings `good` (None: with none)."""

    def pretended(
        backend: str, num_ranks: int, deadline_s: float, settings: Mapping[str, str] | None = None, largest: int = 0
    ) -> Outcome:
        problem = "" if good is not None and dict(settings or {}) == dict(good) else "no end within 60 s"
        return Outcome(problem, [Measured(2**10, 1e-5), Measured(2**26, seconds)], [], [])

    monkeypatch.setattr(allreduce_findings, "all_reduce", pretended)
    return check_all_reduce("nccl", 2, [LO, ETH], lambda text: None)[0]


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ({"NCCL_P2P_DISABLE": "1"}, ["ACS", "iommu=pt"]),
        ({"NCCL_SOCKET_IFNAME": "lo"}, ["NCCL_SOCKET_IFNAME=lo on one machine, eth0 on several"]),
        ({"NCCL_SHM_DISABLE": "1"}, ["--ipc=host"]),
    ],
)
def test_the_setting_that_helps_nccl_names_the_cause(
    monkeypatch: pytest.MonkeyPatch, setting: dict[str, str], words: Sequence[str]
) -> None:
    found = _nccl(monkeypatch, setting)
    assert found.status == FAIL and all(word in found.remedy for word in words)


def test_nccl_that_no_setting_helps_slow_nccl_and_good_nccl(monkeypatch: pytest.MonkeyPatch) -> None:
    found = _nccl(monkeypatch, None)
    assert found.status == FAIL and "NCCL_DEBUG=INFO" in found.remedy
    found = _nccl(monkeypatch, {}, seconds=0.5)
    assert found.status == WARN and "0.13 GB/s" in found.value
    found = _nccl(monkeypatch, {})
    assert found.status == OK and "1 KiB in 10 µs" in found.value and "64 MiB at 67.1 GB/s" in found.value
