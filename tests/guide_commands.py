"""The commands of the guides in docs/documents.md as they stand there, and how tests run them: in two CPU processes."""

from __future__ import annotations

import os
import re
import shlex
import socket
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# What is started: one start holds every line whose words it has.
CONFIG = "train.py --config configs/ddp_example.yaml --task"
STARTS = {
    "torchrun": 'torchrun --nproc_per_node=4 --nnodes=2 --node_rank=0 --master_addr="192.168.1.100" '
    f"--master_port=29500 {CONFIG} train --strategy ddp --grad_ckpt",
    "launch": "python -m torch.distributed.launch --nproc_per_node=4 --nnodes=2 --node_rank=0 "
    f'--master_addr="192.168.1.100" --master_port=29500 {CONFIG} train --strategy fsdp',
    "use_env": "python -m torch.distributed.launch --nproc_per_node=2 --use_env train.py --distributed",
    "fsdp": "torchrun --nproc_per_node=4 train.py --strategy fsdp --grad_ckpt",
    "fsdp.sh": "NPROC_PER_NODE=2 bash train_torchrun.sh --strategy fsdp",
    "ddp.sh": "NPROC_PER_NODE=2 ./train_ddp.sh --config configs/ddp_example.yaml",
    "one": "python train.py --layers 50 --model_type res50_ASPP_lorm",
    "train": "torchrun --nproc_per_node=4 --standalone train.py --distributed "
    "--config configs/ddp_example.yaml --task train",
    "test": f"torchrun --nproc_per_node=4 {CONFIG} test",
    "predict": f"torchrun --nproc_per_node=4 {CONFIG} predict",
    "local_rank": "python train.py --distributed --local_rank=0",
    "tensorboard": "tensorboard --logdir=./log",
    "script": "torchrun --nproc_per_node=2 SCRIPT",
}


def run(line: str, *more: str, cwd: Path = ROOT, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a guide's command with `more` arguments: two processes on this machine in the place of its four or eight."""
    port = str(unused_port())
    line = re.sub(r"--master_port=\d+", f"--master_port={port}", with_two_processes(line))
    launcher = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
    environ = {name: value for name, value in os.environ.items() if name not in launcher}
    environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environ['PATH']}"
    # PET_MASTER_PORT: the port of a command that names none, which is 29500 for everybody on this machine.
    environ.update(OMP_NUM_THREADS="1", CUDA_VISIBLE_DEVICES="", PET_MASTER_PORT=port, PYTHON=sys.executable)
    ended = subprocess.run(
        ["env", *shlex.split(line), *more],
        cwd=cwd,
        env={**environ, **variables},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ended.returncode == 0, f"{line}\n{ended.stdout}\n{ended.stderr}"
    return ended


def with_two_processes(line: str) -> str:
    line = line.replace("--nproc_per_node=4", "--nproc_per_node=2").replace("--nnodes=2", "--nnodes=1")
    return re.sub(r'--master_addr="?[\d.]+"?', "--master_addr=127.0.0.1", line)


def unused_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
