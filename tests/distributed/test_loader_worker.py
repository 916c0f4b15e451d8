"""Loader workers of a rank that is killed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psutil
from run_program import ROOT, program_environment

PROGRAM = """
import argparse

import torch
from torch.utils.data import DataLoader, TensorDataset

import retrofit.distributed as rd

if __name__ == "__main__":
    parser = rd.add_runtime_flags(argparse.ArgumentParser())
    rd.setup_distributed(parser.parse_args(["--distributed"]))
    loader = DataLoader(TensorDataset(torch.zeros(64, 1)), batch_size=2, **rd.data.loader_workers(2))
    running = [iter(shared) for shared in (rd.distribute_loader(loader), rd.share_batches(loader))]
    for batches in running:
        next(batches)
    print("started", flush=True)
    input()
"""


def test_a_killed_rank_leaves_no_loader_worker(tmp_path: Path) -> None:
    """Its workers come from a fork server, which lives as long as they do."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    rank = subprocess.Popen(
        [sys.executable, str(program)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=program_environment(), cwd=ROOT,
    )  # fmt: skip
    assert rank.stdout is not None and rank.stdout.readline() == "started\n"
    started = psutil.Process(rank.pid).children(recursive=True)
    assert len(started) >= 5, "a fork server and two workers of each loader"
    rank.kill()
    rank.communicate()
    _, left = psutil.wait_procs(started, timeout=20)
    for process in left:
        process.kill()
    assert left == []
