"""Running a script in one process, and its conversion in several."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest
from convert.additions_of import write_converted
from convert.conversion import conversion
from verify.projects.launch import Launcher


def trains_as_one(
    folder: Path, script: str, launcher: Launcher, world_sizes: Iterable[int] = (2,), rel: float = 1e-9
) -> None:
    """Check that the lines which begin with "shown" have the numbers of the script in all runs of its conversion."""
    original, changed = folder / "original", folder / "converted"
    for place in (original, changed):
        place.mkdir()
    (original / "train.py").write_text(script)
    write_converted(changed, conversion(changed, script))
    expected = _shown(launcher.run(original, "train.py", []))
    assert expected
    for size in world_sizes:
        run = launcher.run(changed, "train.py", [], world_size=size, RETROFIT_BATCH="global")
        assert _shown(run) == pytest.approx(expected, rel=rel, abs=1e-12), size


def _shown(run: dict) -> list[float]:
    assert set(run["statuses"]) == {0}, run["outputs"]
    lines = [line.split() for line in run["outputs"][0].splitlines()]
    return [float(number) for line in lines if line[:1] == ["shown"] for number in line[1:]]
