"""Whatever file it is given, `retrofit convert` neither fails nor touches what trains nothing."""

from __future__ import annotations

import random
import sysconfig
from pathlib import Path

import pytest

from retrofit.convert.plan import plan_conversion
from retrofit.project import SourceError, read_project

NUMBER = 150
LARGEST = 200_000  # bytes


def installed_files() -> list[Path]:
    """Return some of the files of the installed packages and the standard library, the same ones each time."""
    folders = [Path(sysconfig.get_path(name)) for name in ("purelib", "stdlib")]
    files = sorted({path for folder in folders for path in folder.rglob("*.py") if path.stat().st_size < LARGEST})
    return random.Random(1).sample(files, NUMBER)


def test_installed_files_are_read_and_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("retrofit.project.modules.MOST_FILES", 1)  # each file alone, not what it imports
    read = 0
    for path in installed_files():
        try:
            conversion = plan_conversion(read_project(path))
        except SourceError:
            continue  # a test file with broken syntax, on purpose
        read += 1
        assert conversion.refusals or not conversion.files, path
    assert read > NUMBER * 0.9


def test_a_very_long_file(tmp_path: Path) -> None:
    script = tmp_path / "long.py"
    script.write_text(
        "".join(f"def f{i}(x):\n    y = x + {i}\n    return f{i - 1}(y) if x else y\n" for i in range(7000))
    )
    assert plan_conversion(read_project(script)).refusals
