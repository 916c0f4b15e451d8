"""train_slurm.sh, in a SLURM cluster of two nodes on this machine where SLURM is installed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from launch_project import DOCUMENTED_VARIABLES, OTHER_VARIABLES
from slurm_cluster import slurm_cluster, why_no_slurm
from two_hosts import TwoHosts, two_hosts, why_not

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = ROOT / "train_slurm.sh"
TRAINING = ["--model_type", "swin_mlp", "--layers", "18", "--crop_size", "32", "--batchsize", "160", "--epochs", "1"]
TRAINING += ["--workers", "0"]
DEADLINE_S = 180


class Cluster:
    """Two nodes and their `hosts`; a job trains one process on each, started in the project's folder."""

    def __init__(self, hosts: TwoHosts, run: Callable[..., subprocess.CompletedProcess]) -> None:
        self.hosts = hosts
        self.run = run

    def submit(self, output: Path, options: list[str], arguments: list[str]) -> str:
        """Submit a job whose output goes to a file, and return its number."""
        variables = {"PYTHON": sys.executable, "CUDA_VISIBLE_DEVICES": "", "NPROC_PER_NODE": "1"}
        submit = ["sbatch", "--nodes=2", "--cpus-per-task=2", f"--output={output}", *options, str(SCRIPT)]
        ended = self.run(*submit, *TRAINING, *arguments, cwd=ROOT, OMP_NUM_THREADS="1", **variables)
        assert ended.returncode == 0, ended.stdout
        return ended.stdout.split()[-1]  # Submitted batch job 1

    def end_of(self, job: str, output: Path) -> str:
        """Wait until the job is over, and return how SLURM says it ended, such as COMPLETED."""
        states = []  # not sbatch --wait, which asks ever more rarely

        def is_over() -> bool:
            states.append(re.search(r"JobState=(\w+)", self.run("scontrol", "show", "job", job).stdout).group(1))
            return states[-1] not in ("PENDING", "RUNNING", "SIGNALING", "COMPLETING")

        wait_until(is_over, output)
        return states[-1]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    reason = why_not() or why_no_slurm()
    if reason is not None:
        pytest.skip(f"no SLURM cluster: {reason}")
    with pytest.MonkeyPatch.context() as patch:
        for name in (*DOCUMENTED_VARIABLES, *OTHER_VARIABLES):
            patch.delenv(name, raising=False)
        with two_hosts() as hosts, slurm_cluster(hosts, tmp_path_factory.mktemp("cluster")) as run:
            yield Cluster(hosts, run)


def test_a_job_on_two_nodes(tmp_path: Path, cluster: Cluster) -> None:
    logdir, output = tmp_path / "the log", tmp_path / "output.txt"  # an argument with a space
    job = cluster.submit(output, [], ["--logdir", str(logdir)])
    state, text = cluster.end_of(job, output), output.read_text()
    assert state == "COMPLETED", text
    assert "2 process(es), ddp, global batch 320" in text
    for rank, interface in enumerate(cluster.hosts.interfaces):
        assert f"GLOO_SOCKET_IFNAME={interface} " in text
        assert f"--nnodes=2 --node_rank={rank} --master_addr=node0 --master_port={15000 + int(job)} " in text
    (checkpoint,) = logdir.glob("*/checkpoint_0001_00000000.pt")
    assert torch.load(checkpoint, weights_only=True)["world_size"] == 2


def test_a_job_saves_two_minutes_before_its_time_limit(tmp_path: Path, cluster: Cluster) -> None:
    logdir, output = tmp_path / "log", tmp_path / "output.txt"
    arguments = ["--batchsize", "16", "--epochs", "1000", "--logdir", str(logdir)]
    job = cluster.submit(output, ["--time=10"], arguments)
    wait_until(lambda: output.exists() and "epoch 1/1000:  " in output.read_text(), output)
    changed = cluster.run("scontrol", "update", f"JobId={job}", "TimeLimit=2")  # minutes: its last two have begun
    assert changed.returncode == 0, changed.stdout
    state, text = cluster.end_of(job, output), output.read_text()
    assert re.search(r"interrupted in epoch \d+, saved", text), f"{state}\n{text}"
    newest = max(logdir.glob("*/checkpoint_*.pt"))
    assert torch.load(newest, weights_only=True)["world_size"] == 2


def wait_until(condition: Callable[[], bool], output: Path) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, output.read_text() if output.exists() else "the job has not begun"
        time.sleep(0.2)


def run_script(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environ = {key: value for key, value in os.environ.items() if not key.startswith("SLURM")}
    return subprocess.run(
        ["bash", str(SCRIPT), *arguments], env={**environ, **variables}, capture_output=True, text=True, timeout=60
    )


def test_help() -> None:
    ended = run_script("--help")
    assert ended.returncode == 0 and ended.stdout == run_script("-h").stdout
    assert "sbatch --nodes=2" in ended.stdout and "python train.py --help" in ended.stdout
    assert max(map(len, ended.stdout.splitlines())) <= 120


def test_outside_a_job_it_says_what_to_do() -> None:
    ended = run_script("--epochs", "1")
    assert ended.returncode == 2
    assert "error: no SLURM job (SLURM_JOB_ID is not set); submit it: sbatch train_slurm.sh" in ended.stderr


@pytest.mark.parametrize("flag", ["--nnodes=2", "--node_rank", "--node-rank=1"])
def test_values_of_the_job_are_not_flags(flag: str) -> None:
    ended = run_script("--epochs", "1", flag, SLURM_JOB_ID="7")
    assert ended.returncode == 2
    assert f"error: {flag.partition('=')[0]} is the job's; give --nodes to sbatch" in ended.stderr


def test_submitted_from_another_folder(tmp_path: Path) -> None:
    ended = run_script(SLURM_JOB_ID="7", SLURM_SUBMIT_DIR=str(tmp_path))
    assert ended.returncode == 2
    assert (
        f"error: no train_torchrun.sh in {tmp_path}; call sbatch in the project's folder, or set ROOT" in ended.stderr
    )
