"""The pages: README.md, README.zh-CN.md and docs/. Their commands run, their outputs and links are right."""

from __future__ import annotations

import argparse
import ast
import os
import re
import shlex
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pytest
from page_commands import (
    GENERATED,
    IN_DEMO,
    NAMES,
    NOT_RUN,
    ROOT,
    SMALL,
    STARTED,
    TESTED,
    commands_on,
    make_pages,
    written_pages,
)
from verify.projects.launch import Launcher

from retrofit.doctor.finding import Plan
from retrofit.doctor.report import plain_lines
from retrofit.doctor.system import memory
from retrofit.prove.repair import command as repair
from retrofit.verify.checks import CHECKS
from retrofit.verify.command import add_parser
from train import get_arguments

pytestmark = pytest.mark.usefixtures("forked_python")

PAGES = [str(page.relative_to(ROOT)) for page in written_pages()]
READMES = ("README.md", "README.zh-CN.md")
TROUBLE = ("docs/troubleshooting.md", "docs/zh-CN/troubleshooting.md")
# What varies in a message.
VALUES = re.compile(
    r"\.\.\.|[\d.]+|'\w+'|--?\w+|\(s\)|checkpoint |[A-Z_]{4,}|MiB|nan |world_size|\S*/\S*|"
    r"by world size|mean \w+|[:;?()=,]| is |\b(?:a|of)\b"
)
# Messages of torch, the system and the like; ours have to be in the sources.
OF_OTHERS = ("address already in use", "CUDA out of memory", "Bus error.", "Timed out waiting", "Watchdog caught")


def text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


@cache
def renewed(name: str) -> str:
    """Return a page with the outputs that its commands have now."""
    return make_pages.renewed(text(name))


# ---- commands and their outputs


@pytest.mark.parametrize("name", [name for name in PAGES if make_pages.blocks(text(name))])
def test_a_session_shows_what_the_commands_print(name: str) -> None:
    assert make_pages.same(text(name), renewed(name)), "run python docs/make_pages.py --write"


def test_every_block_with_an_output_is_a_session() -> None:
    loose = [name for name in PAGES if re.search(r"^```(console|diff)$", make_pages.BLOCK.sub("", text(name)), re.M)]
    assert loose == []


def test_the_recording_is_up_to_date() -> None:
    import make_session

    shown = make_session.shown_in(make_session.OUTPUT.read_text(encoding="utf-8"))
    real = make_session.shown_in(make_session.drawn(make_session.recorded()))
    assert make_pages.same("\n".join(shown), "\n".join(real)), "run python docs/make_session.py"


def session_commands() -> set[str]:
    """Return the commands of all sessions, without the redirection of their progress."""
    texts = [block.text for name in PAGES for block in make_pages.blocks(text(name)) if block.kind == "console"]
    return {command.partition(" 2>")[0] for part in texts for command in re.findall(r"^\$ (.*)", part, re.M)}


def test_every_command_is_run_or_marked_as_not_run() -> None:
    shown = {command.removeprefix("python -m ") for name in PAGES for command in commands_on(text(name))}
    in_demo = {command.removeprefix("python -m ") for command, _ in IN_DEMO}
    listed = {command.removeprefix("python -m ") for command in (*STARTED, *TESTED, *NOT_RUN, *NAMES)}
    assert sorted(shown - listed - in_demo - session_commands()) == []
    assert sorted(listed - shown) == [], "on no page"


def test_the_tests_that_run_commands_exist() -> None:
    for node in TESTED.values():
        path, _, name = node.partition("::")
        tree = ast.parse(text(path))
        assert name in {part.name for part in tree.body if isinstance(part, ast.FunctionDef)}, node


def test_the_commands_of_the_kit_run(tmp_path: Path) -> None:
    demo = Path(shutil.copytree(ROOT / "docs" / "demo", tmp_path / "demo"))
    shutil.copy(demo / "train.py", demo / "before.py")
    for command, status in IN_DEMO:
        ended, output = make_pages.run(command, demo)
        assert ended == status, f"{command}\n{output}"


@pytest.mark.parametrize("command", STARTED)
def test_a_training_starts_as_shown(command: str, launcher: Launcher, tmp_path: Path) -> None:
    """The options of each command train; test_launch_scripts.py has what the script makes of them."""
    program, _, options = re.fullmatch(r"(python train\.py|bash train_torchrun\.sh)( (.*))?", command).groups("")
    world_size = 1 if program == "python train.py" else 2
    arguments = [*shlex.split(options), *SMALL, "--logdir", str(tmp_path / "log")]
    ended = launcher.run(ROOT, str(ROOT / "train.py"), arguments, world_size, CUDA_VISIBLE_DEVICES="")
    assert ended["statuses"] == [0] * world_size, ended["outputs"]


def test_the_finding_of_doctor_is_what_it_prints(monkeypatch: pytest.MonkeyPatch) -> None:
    (shown,) = re.findall(r"<!-- finding: shared memory -->\n```text\n(.*?)\n```", text("docs/doctor.md"), re.S)
    blocks = SimpleNamespace(f_frsize=4096, f_blocks=2**26 // 4096, f_bavail=2**26 // 4096)
    monkeypatch.setattr(memory.os, "statvfs", lambda folder: blocks)
    plan = Plan(2, 4)
    _, found, remedy = plain_lines(plan, [memory.check_shared_memory(plan)])[:3]
    assert shown.splitlines()[0] == found
    assert remedy.startswith(shown.splitlines()[1].removesuffix(" ..."))


def test_the_script_of_the_page_prints_the_same_losses_on_one_process_and_on_two() -> None:
    sessions = "".join(block.text for block in make_pages.blocks(renewed("docs/own_script.md")))
    losses = re.findall(r"lr 0.1, last loss ([\d.]+)", sessions)
    assert len(losses) == 9 and losses[3:6] == losses[6:]


# ---- messages, flags, figures, files, links


@cache
def strings_of_the_sources() -> str:
    """Return every text in the sources, with one space for what is computed."""
    files = [path for folder in ("retrofit", "segmentation", "scripts") for path in (ROOT / folder).rglob("*")]
    files += [ROOT / "train.py", ROOT / "utils.py", *ROOT.glob("*.sh")]
    found = []
    for path in files:
        if path.suffix == ".py":
            found += [_joined(node) for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))]
        elif path.suffix in ("", ".sh") and path.is_file():
            found.append(path.read_text(encoding="utf-8"))
    return " ".join(" ".join(found).split())


def _joined(node: ast.AST) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    return "".join(_joined(part) or " " for part in node.values) if isinstance(node, ast.JoinedStr) else ""


def require_in_sources(message: str) -> None:
    """Require each part of a message that is the same every time, of three words or more, to be in the sources."""
    for fragment in (fragment.strip() for fragment in VALUES.split(message)):
        if len(fragment.split()) > 2:
            assert fragment in strings_of_the_sources(), f"{message}: {fragment}"


@pytest.mark.parametrize("name", TROUBLE)
def test_the_messages_are_those_of_the_program(name: str) -> None:
    cells = [row.split(" | ")[0] for row in text(name).splitlines() if row.startswith("| `")]
    messages = [message for cell in cells for message in re.findall(r"`([^`]+)`", cell)]
    assert len(messages) > 20
    for message in messages:
        if not any(words in message for words in OF_OTHERS):
            require_in_sources(message)


def test_the_lines_of_an_interrupted_run_are_those_of_the_program() -> None:
    lines = [code for code in re.findall(r"`([^`\n]+)`", text("docs/checkpoints.md")) if "..." in code and " " in code]
    assert len(lines) == 4
    for line in lines:
        require_in_sources(line)


def flags_in(name: str) -> set[str]:
    """Return the flags in the first column of the tables of a page."""
    cells = re.findall(r"^\| (`-[^|]*) \|", text(name), re.MULTILINE)
    return {flag for cell in cells for flag in re.findall(r"`--?([\w-]+)", cell)}


def test_every_flag_of_verify_is_in_its_table_and_nothing_else() -> None:
    commands = argparse.ArgumentParser().add_subparsers()
    repair.add_options(add_parser(commands))
    names = [action.option_strings[0] for action in commands.choices["verify"]._actions if action.option_strings]
    assert flags_in("docs/verify.md") == {name.lstrip("-") for name in names} - {"h"}


def test_every_flag_is_in_the_table_and_nothing_else() -> None:
    documented = flags_in("docs/flags.md")
    options = set(vars(get_arguments([])))
    assert options <= documented
    assert documented - options == {"warmup", "l_seg", "local-rank"}  # aliases


@pytest.mark.parametrize("name", READMES)
def test_the_figures_of_the_real_projects_are_those_of_their_page(name: str) -> None:
    (summary,) = re.findall(r"^\d+ of \d+ projects converted.*", text("docs/corpus.md"), re.M)
    (shown,) = [line for line in text(name).splitlines() if "docs/corpus.md" in line]
    for words in (
        r"(\d+) of (\d+) projects", r"\((\d+) to (\d+) added lines, median (\d+)\)", r"(\d+) on three",
        r"in (\d+) losses", r"(\d+) are refused",
    ):  # fmt: skip
        found = re.search(words, summary)
        assert found and set(found.groups()) <= set(re.findall(r"\d+", shown)), words


@pytest.mark.parametrize("name", [*READMES, "docs/verify.md"])
def test_the_number_of_checks_is_right(name: str) -> None:
    assert re.findall(r"(\d+)(?: checks? compare| checks \||\s*项检查)", text(name)) == [str(len(CHECKS))]


def test_the_lines_that_convert_adds_to_the_reference_project_are_counted_right() -> None:
    parts = re.split(r"^\+\+\+ ", text("tests/convert/golden/reference_project.diff"), flags=re.M)[1:]
    added = {part.split()[0]: len(re.findall(r"^\+", part, re.M)) for part in parts}
    own = sum(lines for path, lines in added.items() if "/segmentation/" not in path)
    counted = f"({own} added lines in `train.py`, {sum(added.values()) - own} in `segmentation/`)"
    assert counted in text("docs/reference_project.md")


def test_the_page_of_folders_is_up_to_date() -> None:
    assert subprocess.run([sys.executable, str(ROOT / "docs" / "make_architecture.py"), "--check"]).returncode == 0, (
        "run python docs/make_architecture.py"
    )


def test_all_of_the_picture_of_the_parts_is_in_it() -> None:
    shapes = re.findall(r'<rect (?:x="(\d+)" y="(\d+)" )?width="(\d+)" height="(\d+)"', text("docs/architecture.svg"))
    (_, _, width, height), *boxes = ([int(number or 0) for number in shape] for shape in shapes)
    assert len(boxes) > 10 and all(x + wide < width and y + high < height for x, y, wide, high in boxes)


def test_the_page_of_functions_is_up_to_date(tmp_path: Path) -> None:
    copy = shutil.copytree(ROOT / "docs", tmp_path / "docs")
    (tmp_path / "retrofit").symlink_to(ROOT / "retrofit")
    subprocess.run([sys.executable, str(copy / "make_api.py")], check=True)
    assert (copy / "api.md").read_text() == text("docs/api.md"), "run python docs/make_api.py"


@pytest.mark.parametrize("name", PAGES)
def test_links_lead_somewhere(name: str) -> None:
    links = re.findall(r"\]\(([^)#:]+)\)", text(name))
    folder = (ROOT / name).parent
    assert [link for link in links if not (folder / link).exists()] == []


@pytest.mark.parametrize("name", [*PAGES, "docs/architecture.md", "CONTRIBUTING.md"])
def test_the_files_named_exist(name: str) -> None:
    folders = "retrofit|segmentation|tests|benchmarks|docs|examples|configs"
    named = re.findall(rf"(?<![\w/])((?:{folders})/[\w./-]*\w/?)", text(name))
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_the_tree_of_files_exists() -> None:
    (tree,) = re.findall(r"```\n(.*?)```", text("docs/files.md"), re.S)
    folders: list[str] = []
    for line in tree.splitlines():
        depth = (len(line) - len(line.lstrip())) // 2
        if depth > 5:  # the rest of a line
            continue
        folders = [*folders[:depth], line.split()[0]]
        assert (ROOT / os.path.join(*folders)).exists(), folders


def test_every_page_is_on_the_list() -> None:
    listed = set(re.findall(r"\]\(([\w/.-]+\.md)\)", text("docs/README.md")))
    there = {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").glob("**/*.md")} - {"README.md"}
    there -= {"skill/SKILL.md"}  # for programs; automation.md names it
    assert there <= listed


# ---- the first page, in two languages


@pytest.mark.parametrize("name", READMES)
def test_the_first_page_is_short_and_shows_the_picture(name: str) -> None:
    assert len(text(name).splitlines()) <= 200
    assert "](docs/session.svg)" in text(name)


@pytest.mark.parametrize("names", [READMES, TROUBLE], ids=["README", "troubleshooting"])
def test_both_languages_have_the_same_blocks_and_tables(names: tuple[str, str]) -> None:
    english, chinese = (text(name) for name in names)
    assert english.count("```") == chinese.count("```")
    for pattern in (r"^\|", r"^#+ ", r"^- "):
        assert len(re.findall(pattern, english, re.M)) == len(re.findall(pattern, chinese, re.M)), pattern


def test_generated_pages_are_not_checked_as_handwritten() -> None:
    assert not GENERATED & {Path(name).name for name in PAGES}
