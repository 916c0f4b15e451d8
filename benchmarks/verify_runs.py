"""Run `retrofit verify` in a copy of a project, for the benchmarks that judge what it says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


def verified(
    make: Callable[[Path], object], arguments: Sequence[str], time_limit_s: float, keep: Path | None = None
) -> tuple[int, dict[str, Any], str]:
    """Return the exit status of `verify`, its report (empty where there is none), and the last line of its errors.

    `make` writes the project to the path that it is given. `keep`: where the report and the errors go, without ending.
    """
    with tempfile.TemporaryDirectory() as temporary:
        project = Path(temporary, "project")
        make(project)
        command = [sys.executable, "-m", "retrofit", "verify", "--json", "--html", ""]
        command += ["--time-limit", str(time_limit_s), *arguments]
        environ = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, cwd=project, env=environ, capture_output=True, text=True, check=False)
    if keep is not None:
        keep.parent.mkdir(parents=True, exist_ok=True)
        keep.with_name(f"{keep.name}.json").write_text(done.stdout)
        keep.with_name(f"{keep.name}.err").write_text(done.stderr)
    last = (done.stderr.strip().splitlines() or [""])[-1]
    try:
        return done.returncode, json.loads(done.stdout), last
    except ValueError:
        return done.returncode, {}, last
