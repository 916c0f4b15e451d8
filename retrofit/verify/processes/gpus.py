"""The number of GPUs, counted in another process: this one must not initialise CUDA before it forks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

DEVICE_FILES = ("nvidia[0-9]*", "kfd", "dxg")  # CUDA, ROCm, WSL


def count_gpus() -> int:
    """Return the number of GPUs that torch can use here."""
    if not any(path for pattern in DEVICE_FILES for path in Path("/dev").glob(pattern)):
        return 0  # spares the import of torch in that other process
    # Not the current folder's modules, which are found by an empty entry.
    program = "import sys; sys.path[:] = filter(None, sys.path); import torch; print(torch.cuda.device_count())"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    return int(result.stdout.strip() or 0) if result.returncode == 0 else 0
