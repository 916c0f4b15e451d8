"""`retrofit verify` as a user starts it, for tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


def run_verify(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-m", "retrofit", "verify", *arguments]
    return subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=600)


def judge(folder: Path, options: list[str], arguments: list[str]) -> tuple[int, dict[str, Any]]:
    result = run_verify(folder, "train.py", "--json", "--html", "page.html", *options, "--", *arguments)
    assert result.stdout, result.stderr
    return result.returncode, json.loads(result.stdout)
