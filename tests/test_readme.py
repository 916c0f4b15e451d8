"""What the two READMEs say about the code is still so."""

from __future__ import annotations

import argparse
import difflib
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from retrofit.cli import main
from retrofit.verify.command import add_parser
from train import get_arguments

ROOT = Path(__file__).resolve().parent.parent
READMES = ("README.md", "README.zh-CN.md")


def text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", READMES)
def test_the_diff_shown_is_part_of_the_real_one(name: str) -> None:
    before, after = (text(f"examples/lesson/{file}").splitlines() for file in ("before.py", "after.py"))
    real = set(difflib.unified_diff(before, after, lineterm=""))
    shown, _ = diffs_in(name)
    changed = [line for line in shown if line[:1] in ("+", "-")]
    assert len(changed) > 10
    assert [line for line in changed if line not in real] == []


def diffs_in(name: str) -> list[list[str]]:
    return [block.splitlines() for block in re.findall(r"```diff\n(.*?)```", text(name), re.DOTALL)]


@pytest.mark.parametrize("name", READMES)
def test_the_session_shown_is_what_the_commands_print(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(ROOT / "tests" / "convert" / "projects" / "main_function", tmp_path / "project")
    monkeypatch.chdir(tmp_path / "project")
    blocks = dict(re.findall(r"```text\n\$ retrofit (\w+) [^\n]*\n(.*?)\n```", text(name), re.DOTALL))
    assert main(["check", "train.py"]) == 1
    assert blocks["check"] == capsys.readouterr().out.rstrip()
    assert main(["convert", "train.py", "--write"]) == 0
    shown = capsys.readouterr()
    assert blocks["convert"] == shown.err.rstrip()
    _, diff = diffs_in(name)
    assert diff == shown.out.splitlines()


@pytest.mark.parametrize("name", READMES)
def test_links_lead_somewhere(name: str) -> None:
    links = re.findall(r"\]\(([^)#:]+)\)", text(name))
    assert "docs/predictions.png" in links
    assert [link for link in links if not (ROOT / link).exists()] == []


def flags_in(name: str, *headings: str) -> set[str]:
    """Return the flags in the first column of the tables of the section that has one of `headings`."""
    sections = re.split(r"^## ", text(name), flags=re.MULTILINE)
    (section,) = [section for section in sections if section.startswith(headings)]
    cells = re.findall(r"^\| (`-[^|]*) \|", section, re.MULTILINE)
    return {flag for cell in cells for flag in re.findall(r"`--?([\w-]+)", cell)}


@pytest.mark.parametrize("name", READMES)
def test_every_flag_of_verify_is_in_its_table_and_nothing_else(name: str) -> None:
    commands = argparse.ArgumentParser().add_subparsers()
    add_parser(commands)
    names = [action.option_strings[0] for action in commands.choices["verify"]._actions if action.option_strings]
    assert flags_in(name, "Proof", "证明") == {name.lstrip("-") for name in names} - {"h"}


@pytest.mark.parametrize("name", READMES)
def test_every_flag_is_in_the_table_and_nothing_else(name: str) -> None:
    documented = flags_in(name, "Flags", "参数\n")
    options = set(vars(get_arguments([])))
    assert options <= documented
    assert documented - options == {"warmup", "l_seg", "local-rank"}  # aliases


def test_the_page_of_functions_is_up_to_date(tmp_path: Path) -> None:
    copy = shutil.copytree(ROOT / "docs", tmp_path / "docs")
    (tmp_path / "retrofit").symlink_to(ROOT / "retrofit")
    subprocess.run([sys.executable, str(copy / "make_api.py")], check=True)
    assert (copy / "api.md").read_text() == text("docs/api.md"), "run python docs/make_api.py"


@pytest.mark.parametrize("name", READMES)
def test_the_files_named_exist(name: str) -> None:
    named = re.findall(r"`((?:tests|benchmarks|docs|examples|configs)/[\w./]+\.(?:py|sh|yaml|png))`", text(name))
    assert len(named) > 10
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_both_languages_have_the_same_commands_and_tables() -> None:
    english, chinese = (text(name) for name in READMES)
    assert english.count("```") == chinese.count("```")
    for pattern in (r"^\|", r"^#+ ", r"^```python\n.*?```"):
        flags = re.MULTILINE | re.DOTALL
        assert len(re.findall(pattern, english, flags)) == len(re.findall(pattern, chinese, flags)), pattern
