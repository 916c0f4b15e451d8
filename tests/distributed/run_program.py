"""Run a small program in a Python process of its own, for what a test process cannot do to itself."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def program_environment(**variables: str) -> dict[str, str]:
    """Return this process's environment without a launcher's variables, with the repository importable."""
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
    kept = {key: value for key, value in os.environ.items() if key not in names and not key.startswith("SLURM_")}
    return {**kept, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **variables}


def run_python(*arguments: str, timeout_s: float = 300.0, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run `python *arguments` to its end and return it with its output; `variables` join the environment."""
    return subprocess.run(
        [sys.executable, *arguments],
        env=program_environment(**variables),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )
