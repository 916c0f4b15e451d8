"""train_slurm.sh, in a SLURM cluster of two nodes on this machine where SLURM is installed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from launch_project import DOCUMENTED_VARIABLES, OTHER_VARIABLES
from slurm_cluster import slurm_cluster, why_no_slurm
from two_hosts import two_hosts, why_not

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = ROOT / "train_slurm.sh"
TRAINING = ["--layers", "18", "--crop_size", "32", "--batchsize", "160", "--epochs", "1", "--val_epoch", "1"]


def test_a_job_on_two_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reason = why_not() or why_no_slurm()
    if reason is not None:
        pytest.skip(f"no SLURM cluster: {reason}")
    for name in (*DOCUMENTED_VARIABLES, *OTHER_VARIABLES):
        monkeypatch.delenv(name, raising=False)
    logdir, output = tmp_path / "the log", tmp_path / "output.txt"  # an argument with a space
    variables = {"PYTHON": sys.executable, "CUDA_VISIBLE_DEVICES": "", "NPROC_PER_NODE": "1", "OMP_NUM_THREADS": "1"}
    submit = ["sbatch", "--wait", "--nodes=2", "--cpus-per-task=2", f"--output={output}", str(SCRIPT)]
    with two_hosts() as hosts, slurm_cluster(hosts, tmp_path) as run:
        ended = run(*submit, *TRAINING, "--workers", "0", "--logdir", str(logdir), cwd=ROOT, **variables)
        interfaces = hosts.interfaces
    text = output.read_text()
    assert ended.returncode == 0, ended.stdout + text
    assert "2 process(es), ddp, global batch 320" in text
    for rank, interface in enumerate(interfaces):
        assert f"GLOO_SOCKET_IFNAME={interface} " in text
        assert f"--nnodes=2 --node_rank={rank} --master_addr=node0 --master_port=15001 " in text
    (checkpoint,) = logdir.glob("*/checkpoint_0001_00000000.pt")
    assert torch.load(checkpoint, weights_only=True)["world_size"] == 2


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


def test_submitted_from_another_folder(tmp_path: Path) -> None:
    ended = run_script(SLURM_JOB_ID="7", SLURM_SUBMIT_DIR=str(tmp_path))
    assert ended.returncode == 2
    assert (
        f"error: no train_torchrun.sh in {tmp_path}; call sbatch in the project's folder, or set ROOT" in ended.stderr
    )
