"""The work of a check grows as the lines of a project do; benchmarks/check_speed.py measures the seconds."""

from __future__ import annotations

import cProfile
import pstats
from pathlib import Path

from benchmarks.generated_project import write_project
from retrofit.rules.registry import find_hazards
from retrofit.training import read_project


def calls_per_line(folder: Path, lines: int) -> float:
    """Return the number of Python calls for each line: unlike seconds, the same on every machine."""
    script, lines = write_project(folder, lines)
    profile = cProfile.Profile()
    profile.enable()
    findings = list(find_hazards(read_project(script)))
    profile.disable()
    assert findings
    return pstats.Stats(profile).total_calls / lines  # type: ignore[attr-defined]


def test_four_times_the_lines_is_four_times_the_work(tmp_path: Path) -> None:
    small, large = (calls_per_line(tmp_path / str(lines), lines) for lines in (500, 2000))
    assert large < 1.25 * small
