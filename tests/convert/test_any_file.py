"""Whatever file it is given, retrofit neither fails nor touches what trains nothing.

benchmarks/any_file.py gives it all files.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from benchmarks.any_file import CONVERTED, LEFT_ALONE, UNREADABLE, examine, installed_files
from retrofit.convert.plan import plan_conversion
from retrofit.training import read_project

NUMBER = 150
LARGEST = 200_000  # bytes
PROJECTS = Path(__file__).parent / "projects"


@pytest.fixture(autouse=True)
def _without_imports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("retrofit.analysis.files.modules.MOST_FILES", 1)  # each file alone


@pytest.fixture(scope="module")
def installed() -> list[Path]:
    return [path for path in installed_files() if path.stat().st_size < LARGEST]


def test_some_of_the_installed_files(installed: list[Path]) -> None:
    outcomes = [examine(path) for path in random.Random(1).sample(installed, NUMBER)]
    assert [outcome for outcome in outcomes if outcome.problem] == []
    assert sum(outcome.kind == LEFT_ALONE for outcome in outcomes) > NUMBER * 0.9


@pytest.mark.slow
def test_every_installed_file_that_computes_gradients(installed: list[Path]) -> None:
    files = [path for path in installed if b".backward(" in path.read_bytes()]
    outcomes = [examine(path) for path in files]
    assert [outcome for outcome in outcomes if outcome.problem] == []
    assert {outcome.kind for outcome in outcomes} <= {LEFT_ALONE, CONVERTED, UNREADABLE} and len(files) > 10


@pytest.mark.slow
def test_the_files_of_the_example_projects() -> None:
    outcomes = [examine(path) for path in sorted(PROJECTS.rglob("*.py"))]
    assert [outcome for outcome in outcomes if outcome.problem] == []
    assert sum(outcome.kind == CONVERTED for outcome in outcomes) > 20


def test_a_very_long_file(tmp_path: Path) -> None:
    script = tmp_path / "long.py"
    script.write_text(
        "".join(f"def f{i}(x):\n    y = x + {i}\n    return f{i - 1}(y) if x else y\n" for i in range(7000))
    )
    assert plan_conversion(read_project(script)).refusals
