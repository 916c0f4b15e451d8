"""`retrofit verify` passes on converted projects: the same training as the original's, on one process and on two."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from convert.feature_cases import FEATURE_CASES
from convert.shape_cases import SHAPE_CASES

pytestmark = pytest.mark.usefixtures("forked_python")

ROOT = Path(__file__).resolve().parents[2]
PROJECTS = Path(__file__).parent / "projects"
# A trainer in a library with an endless sampler; BatchNorm and a drawn graph; a scheduler per step; continued runs;
# a rate that follows the evaluation; a loss with parameters of its own and an uneven last batch.
NAMES = (
    "lib_trainer",
    "graph_and_reload",
    "onecycle_len_loader",
    "toplevel_argparse",
    "plateau_early_stop",
    "trained_loss",
)

# As the installed command: without the folder that it is called in, which holds a `retrofit` of its own by then.
COMMAND = "import sys; del sys.path[0]; from retrofit.cli import main; sys.exit(main())"


SLOW = {"graph_and_reload", "lib_trainer", "toplevel_argparse", "plateau_early_stop"}


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * (n in SLOW)) for n in NAMES])
def test_verify_passes_on_a_converted_project(name: str, tmp_path: Path) -> None:
    (case,) = [case for case in [*SHAPE_CASES, *FEATURE_CASES] if case.name == name]
    for folder in (tmp_path / name, tmp_path / name / "before"):
        shutil.copytree(PROJECTS / name, folder, ignore=shutil.ignore_patterns("__pycache__"))
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", COMMAND]
    convert = [*command, "convert", case.entry, "--write"]
    verify = [*command, "verify", case.entry, "--original", f"before/{case.entry}", "--steps", "12", "--html", ""]
    for arguments in (convert, [*verify, "--", *case.arguments]):
        run = subprocess.run(
            arguments, cwd=tmp_path / name, env=environ, capture_output=True, text=True, timeout=900, check=False
        )
        assert run.returncode == 0, run.stdout + run.stderr
    assert "2 processes train the same model as 1" in run.stdout
