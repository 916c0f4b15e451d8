"""Recurring bugs of scripts that are distributed already: found where they are, and nowhere else.

Each folder of triples/ holds a script with a bug (the line of a finding ends with its code), the script without it,
and one that looks like the bug and is none.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from retrofit.project import read_project
from retrofit.rules import find_hazards

ROOT = Path(__file__).resolve().parents[2]
TRIPLES = sorted(path for path in (Path(__file__).parent / "triples").iterdir() if path.is_dir())
DRIVER = Path(__file__).with_name("run_to_the_end.py")
MARK = re.compile(r"# (RF\d+)$")


def found_in(script: Path) -> list[tuple[int, str]]:
    return sorted((finding.place.line, finding.code) for finding in find_hazards(read_project(script)))


def marked_in(script: Path) -> list[tuple[int, str]]:
    lines = enumerate(script.read_text(encoding="utf-8").splitlines(), start=1)
    return [(number, mark[1]) for number, line in lines if (mark := MARK.search(line))]


@pytest.mark.parametrize("folder", TRIPLES, ids=lambda folder: folder.name)
def test_a_bug_is_found_at_its_line_and_nothing_else(folder: Path) -> None:
    marked = marked_in(folder / "bad.py")
    assert marked and found_in(folder / "bad.py") == marked


@pytest.mark.parametrize("kind", ["fixed", "noop"])
@pytest.mark.parametrize("folder", TRIPLES, ids=lambda folder: folder.name)
def test_nothing_is_found_in_a_sound_script(folder: Path, kind: str) -> None:
    assert found_in(folder / f"{kind}.py") == []


@pytest.mark.parametrize("kind", ["fixed", "noop"])
@pytest.mark.parametrize("folder", TRIPLES, ids=lambda folder: folder.name)
def test_a_sound_script_runs_in_two_processes(folder: Path, kind: str, tmp_path: Path) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [*torchrun, str(DRIVER), str(folder / f"{kind}.py")]
    result = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
