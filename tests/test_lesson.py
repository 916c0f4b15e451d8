"""examples/lesson and its page: after.py is what `convert` writes, every line of it is explained, the commands run.

UPDATE_GOLDEN=1 renews examples/lesson/after.py; the diffs in the two pages are then changed by hand.
"""

from __future__ import annotations

import difflib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from retrofit.cli import main
from retrofit.convert.plan import plan_conversion
from retrofit.rules.catalog import CATALOG
from retrofit.training import read_project

pytestmark = pytest.mark.usefixtures("forked_python")

ROOT = Path(__file__).resolve().parents[1]
LESSON = ROOT / "examples" / "lesson"
PAGES = ("lesson.md", "lesson.zh-CN.md")
SHORT = ["--epochs", "2", "--workers", "0", "--batch_size", "30"]
# As the installed command: without the folder that it is called in.
RETROFIT = """\
#!/usr/bin/env bash
exec "{python}" -c 'import sys; del sys.path[0]; from retrofit.cli import main; sys.exit(main())' "$@"
"""


def page(name: str) -> str:
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


def blocks(name: str, language: str = r"\w+") -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page(name), re.DOTALL | re.MULTILINE)


def changed(lines: list[str], sign: str) -> list[str]:
    return [line[1:] for line in lines if line.startswith(sign)]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with before.py alone."""
    folder = tmp_path / "project"
    folder.mkdir()
    shutil.copy(LESSON / "before.py", folder)
    return folder


@pytest.fixture
def converted(project: Path) -> Path:
    assert main(["convert", str(project / "before.py"), "--write"]) == 0
    return project


def test_after_is_what_convert_writes(converted: Path) -> None:
    written = (converted / "before.py").read_text(encoding="utf-8")
    if os.environ.get("UPDATE_GOLDEN"):
        (LESSON / "after.py").write_text(written, encoding="utf-8")
    assert written == (LESSON / "after.py").read_text(encoding="utf-8")


def test_both_scripts_are_short() -> None:
    before, after = ((LESSON / name).read_text(encoding="utf-8") for name in ("before.py", "after.py"))
    assert len(before.splitlines()) <= 150 and len(after.splitlines()) <= 200


def test_every_changed_line_is_shown_in_order() -> None:
    before, after = ((LESSON / name).read_text(encoding="utf-8").splitlines() for name in ("before.py", "after.py"))
    real = [line for line in difflib.unified_diff(before, after, lineterm="", n=0) if line[:3] not in ("+++", "---")]
    shown = [line for block in blocks("lesson.md", "diff") for line in block.splitlines()]
    for sign in "+-":
        assert changed(shown, sign) == changed(real, sign)


def test_the_number_of_lines_is_right() -> None:
    shown = [line for block in blocks("lesson.md", "diff") for line in block.splitlines()]
    added, removed = len(changed(shown, "+")), len(changed(shown, "-"))
    assert f"{added} added lines, {removed} of them in place of old ones" in page("lesson.md")
    assert f"新增 {added} 行，其中 {removed} 行替换了原有的行" in page("lesson.zh-CN.md")


def test_every_rule_that_was_applied_is_named() -> None:
    applied = {finding.code for finding in plan_conversion(read_project(LESSON / "before.py")).findings}
    for name in PAGES:
        named = dict(re.findall(r"(RF\d{3})\**(?: \(|（|, |，)([a-z-]+)", page(name)))
        assert {code: CATALOG[code].name for code in named} == named
        prevented = set(re.findall(r"\*\*(?:Prevents |prevents |避免 )?(RF\d{3})\*\*", page(name)))
        assert prevented == applied


def test_the_chinese_page_has_the_same_code() -> None:
    english, chinese = (blocks(name) for name in PAGES)
    assert english == chinese and len(english) > 10
    codes = [re.findall(r"RF\d{3}", page(name)) for name in PAGES]
    assert sorted(codes[0]) == sorted(codes[1])
    headings = [len(re.findall("^## ", page(name), re.MULTILINE)) for name in PAGES]
    assert headings[0] == headings[1]


@pytest.mark.parametrize("name", PAGES)
def test_links_lead_somewhere(name: str) -> None:
    links = re.findall(r"\]\(([^)#:]+)\)", page(name))
    assert len(links) >= 4
    assert [link for link in links if not (ROOT / "docs" / link).exists()] == []


@pytest.mark.slow  # the sessions of test_pages.py run the same commands
def test_the_commands_run(project: Path) -> None:
    commands, verify = blocks("lesson.md", "bash")
    shutil.copytree(project, project / "original")
    tools = project.parent / "bin"
    tools.mkdir()
    (tools / "retrofit").write_text(RETROFIT.format(python=sys.executable))
    (tools / "retrofit").chmod(0o755)
    lines = commands.splitlines()
    lines.insert(-1, verify.strip())  # before the conversion is taken back
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "PYTHON": sys.executable}
    environ["PATH"] = os.pathsep.join([str(tools), str(Path(sys.executable).parent), environ["PATH"]])
    printed = {}
    for line in lines:
        ended = subprocess.run(
            line, shell=True, cwd=project, env=environ, capture_output=True, text=True, timeout=600, check=False
        )
        assert ended.returncode == (1 if " check " in line else 0), f"{line}\n{ended.stdout}\n{ended.stderr}"
        printed[line] = ended.stdout
    (verdict,) = blocks("lesson.md", "text")
    assert verdict.strip() in printed[verify.strip()]
    assert (project / "before.py").read_bytes() == (LESSON / "before.py").read_bytes()


def train(launcher: Any, folder: Path, script: str, out: str, world_size: int = 1) -> tuple[list[str], dict[str, Any]]:
    """Return what rank 0 prints, and the last checkpoint."""
    arguments = [*SHORT, "--out", out]
    run = launcher.run(folder, script, arguments, world_size=world_size, RETROFIT_BATCH="global")
    assert run["statuses"] == [0] * world_size, run["outputs"]
    assert not any("epoch" in output for output in run["outputs"][1:])
    return run["outputs"][0].splitlines(), torch.load(folder / out / "last.pt", weights_only=True)


def test_one_process_trains_bit_for_bit_the_same_and_three_load_into_it(launcher: Any, converted: Path) -> None:
    shutil.copy(LESSON / "before.py", converted / "original.py")
    lines, before = train(launcher, converted, "original.py", "before")
    own_lines, after = train(launcher, converted, "before.py", "after")
    assert lines == own_lines and before["best"] == after["best"]
    assert all(torch.equal(before["model"][name], after["model"][name]) for name in before["model"])
    _, of_three = train(launcher, converted, "before.py", "three", world_size=3)
    assert list(of_three["model"]) == list(before["model"])
    resumed = launcher.run(converted, "original.py", ["--epochs", "3", "--workers", "0", "--resume", "three/last.pt"])
    assert resumed["statuses"] == [0] and "epoch 2 step   0" in resumed["outputs"][0]
