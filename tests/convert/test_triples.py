"""Scripts that are distributed already, by threes: with a bug, without it, and one that only looks like it.

A bug's line ends with its code, `# RF101`; `retrofit check` finds that and nothing else, and nothing in the others.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from verify.projects.launch import Launcher

from retrofit.cli import main

TRIPLES = sorted(path for path in (Path(__file__).parent / "triples").iterdir() if path.is_dir())
MARK = re.compile(r"# (RF\d+(?:, RF\d+)*)$")
BY_HAND = sorted((Path(__file__).parent / "by_hand").glob("*.py"))  # longer scripts, as people write them
SOUND = [*BY_HAND, *(folder / name for folder in TRIPLES for name in ("fixed.py", "noop.py"))]


def name_of(path: Path) -> str:
    return path.name if path.is_dir() else f"{path.parent.name}/{path.name}"


def found_in(script: Path, capsys: pytest.CaptureFixture[str]) -> list[tuple[int, str]]:
    """Return (line, code) of what is found in a script, every place and code once."""
    main(["check", str(script), "--format", "json"])
    findings = json.loads(capsys.readouterr().out)["findings"]
    return sorted({(finding["line"], finding["code"]) for finding in findings})


def test_every_triple_is_whole() -> None:
    assert len(TRIPLES) > 10 and len(BY_HAND) > 3
    for folder in TRIPLES:
        assert {path.name for path in folder.glob("*.py")} == {"bad.py", "fixed.py", "noop.py"}


@pytest.mark.parametrize("folder", TRIPLES, ids=name_of)
def test_the_bug_is_found_where_it_is_and_nothing_else(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = folder / "bad.py"
    lines = [(number, MARK.search(line)) for number, line in enumerate(script.read_text().splitlines(), start=1)]
    marked = [(number, code) for number, mark in lines if mark for code in mark[1].split(", ")]
    assert marked and found_in(script, capsys) == sorted(marked)


@pytest.mark.parametrize("script", SOUND, ids=name_of)
def test_nothing_is_found_in_a_sound_script(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert found_in(script, capsys) == []


@pytest.mark.parametrize("script", SOUND, ids=name_of)
def test_a_sound_script_runs_on_two_processes(script: Path, launcher: Launcher, tmp_path: Path) -> None:
    world_size = 1 if "mp.spawn" in script.read_text() else 2  # that one starts its processes itself
    result = launcher.run(tmp_path, str(script), [], world_size, 120.0, CUDA_VISIBLE_DEVICES="")
    assert result["statuses"] == [0] * world_size, "\n".join(result["outputs"])
