"""Several scripts of one folder are converted, and each conversion is undone on its own."""

from __future__ import annotations

import itertools
import json
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest
from convert.test_interrupted_writing import Ended, ending, kill, number_of_operations, run, tree

from retrofit.cli import main
from retrofit.convert.added.files import again
from retrofit.convert.writing.undo import recover, undo

UTILS = """\
import torch


def save(model, path):
    torch.save(model.state_dict(), path)


def log(text):
    with open("log.txt", "a") as file:
        file.write(text)
"""
SCRIPT = """\
import torch
from torch.utils.data import DataLoader, TensorDataset

import utils

loader = DataLoader(TensorDataset(torch.randn(16, 3)), 4, shuffle=True)
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for (x,) in loader:
    optimizer.zero_grad()
    loss = model(x).pow(2).mean()
    loss.backward()
    optimizer.step()
"""
SAVES = 'utils.save(model, "model.pt")\n'
LOGS = 'utils.log("done")\n'


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Two scripts that share what they need of a module, and a third that needs more of it."""
    (tmp_path / "utils.py").write_text(UTILS)
    for name in ("one", "two"):
        (tmp_path / f"{name}.py").write_text(SCRIPT + SAVES)
    (tmp_path / "more.py").write_text(SCRIPT + SAVES + LOGS)
    (tmp_path / ".vscode").mkdir()
    (tmp_path / ".vscode" / "launch.json").write_text('{"configurations": [ {"name": "mine"} ]}')
    return tmp_path


def convert(project: Path, name: str, *options: str) -> int:
    return main(["convert", str(project / f"{name}.py"), *options])


def debug_names(project: Path) -> list[str]:
    launch = json.loads((project / ".vscode" / "launch.json").read_text())
    return [entry["name"] for entry in launch["configurations"]]


@pytest.mark.parametrize("order", list(itertools.permutations(["one", "two"])))
@pytest.mark.parametrize("undone", [0, 1])
def test_undone_in_any_order(project: Path, order: tuple[str, str], undone: int) -> None:
    before = tree(project)
    assert run(str(project / f"{order[1 - undone]}.py"), "--write") == 0
    alone = tree(project)  # as it is to be after the other one was undone
    assert convert(project, order[1 - undone], "--undo") == 0 and tree(project) == before
    for name in order:
        assert convert(project, name, "--write") == 0
    for name in order:
        assert "rd.setup_distributed()" in (project / f"{name}.py").read_text()
    assert len(debug_names(project)) == 3
    assert convert(project, order[undone], "--undo") == 0
    left = {name: data for name, data in tree(project).items() if not name.startswith(".retrofit/")}
    names = {"train_torchrun.sh", "train_ddp.sh", "MULTI_GPU.md", ".vscode/launch.json"}
    expected = {name: data for name, data in alone.items() if not name.startswith(".retrofit/")}
    if undone == 0:  # the second conversion has made files with names of its own
        assert {name for name in left if name not in expected} == {
            f"{order[1]}_torchrun.sh", f"{order[1]}_ddp.sh", f"MULTI_GPU_{order[1]}.md"
        }  # fmt: skip
        left, expected = ({n: d for n, d in t.items() if n in alone and n not in names} for t in (left, expected))
        expected = {name: data for name, data in expected.items() if name not in names}
    assert left == expected
    assert debug_names(project)[0] == "mine" and len(debug_names(project)) == 2
    assert convert(project, order[1 - undone], "--undo") == 0
    assert tree(project) == before


def test_each_conversion_has_its_own_launch_scripts_and_page(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "train_ddp.sh").write_text("echo mine\n")
    assert convert(project, "one", "--write") == 0 and "read MULTI_GPU.md" in capsys.readouterr().err
    assert convert(project, "two", "--write") == 0 and "read MULTI_GPU_two.md" in capsys.readouterr().err
    assert (project / "train_ddp.sh").read_text() == "echo mine\n"
    starts = {"train_torchrun.sh": "one", "one_ddp.sh": "one", "two_torchrun.sh": "two", "two_ddp.sh": "two"}
    for start, script in starts.items():
        assert f' {script}.py "$@"' in (project / start).read_text()
        subprocess.run(["bash", "-n", str(project / start)], check=True, timeout=100)
    page = (project / "MULTI_GPU_two.md").read_text()
    assert "`bash two_torchrun.sh ARGUMENTS`" in page and "train_torchrun" not in page
    assert '"Debug DDP Training (two.py)" in VS Code' in page
    assert debug_names(project) == ["mine", "Debug DDP Training", "Debug DDP Training (two.py)"]


def test_a_module_that_both_changed_is_undone_in_turn(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = tree(project)
    assert convert(project, "one", "--write") == 0
    assert convert(project, "more", "--write") == 0
    text = (project / "utils.py").read_text()
    assert "rd.path_on_main" in text and text.count("import multigpu as rd") == 1
    both = tree(project)
    assert convert(project, "one", "--undo") == 2
    message = capsys.readouterr().err
    assert "utils.py was changed by the conversion of more.py too; undo that one first: `retrofit convert" in message
    assert tree(project) == both
    assert convert(project, "more", "--undo") == 0 and convert(project, "one", "--undo") == 0
    assert tree(project) == before


def test_undo_asks_which_one(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert convert(project, "one", "--write") == 0
    assert convert(project, "two", "--undo") == 2
    assert "no conversion of two.py to undo" in (message := capsys.readouterr().err) and "only of one.py" in message
    assert convert(project, "two", "--write") == 0
    assert main(["convert", str(project), "--undo"]) == 2
    assert "name one of: one.py, two.py" in capsys.readouterr().err
    assert convert(project, "two", "--undo") == 0
    assert "restored two.py" in (said := capsys.readouterr().out) and "utils.py" not in said
    assert main(["convert", str(project), "--undo"]) == 0
    assert "restored utils.py" in capsys.readouterr().out and (project / "utils.py").read_text() == UTILS


def test_files_that_another_conversion_needs_are_kept_and_listed(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert convert(project, "one", "--write") == 0 and convert(project, "two", "--write") == 0
    capsys.readouterr()
    assert convert(project, "one", "--undo") == 0
    assert "files that the conversion of two.py needs" in capsys.readouterr().out
    assert (project / "multigpu.py").exists() and "rd." in (project / "utils.py").read_text()


def test_undo_removes_the_compiled_files_of_the_runtime(project: Path) -> None:
    before = tree(project)
    assert convert(project, "one", "--write") == 0
    (project / "__pycache__").mkdir()
    for version in (39, 311):
        (project / "__pycache__" / f"multigpu.cpython-{version}.pyc").write_bytes(b"")
    assert convert(project, "one", "--undo") == 0 and tree(project) == before


def test_killed_while_one_of_two_is_undone(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.fsync", lambda file: None)
    assert convert(project, "one", "--write") == 0 and convert(project, "two", "--write") == 0
    both = tree(project)
    number = number_of_operations(lambda: undo(project, project / "one.py", again))
    done = tree(project)
    for last in [*range(1, 40), *range(40, number, 9), number - 1, number]:
        assert convert(project, "two", "--undo") == 0
        if tree(project) != both:
            with suppress(Exception):
                undo(project, project / "one.py", again)
            assert run(str(project / "one.py"), "--write") == 0 and run(str(project / "two.py"), "--write") == 0
        assert tree(project) == both
        with ending(last, kill), suppress(Ended):
            undo(project, project / "one.py", again)
        recover(project, again)
        if tree(project) != done:
            assert tree(project) == both
            undo(project, project / "one.py", again)
        assert tree(project) == done


@pytest.mark.parametrize("other", ["more", "two"])
def test_scripts_that_are_named_together_share_what_they_change(project: Path, other: str) -> None:
    before = tree(project)
    names = [str(project / f"{name}.py") for name in ("one", other)]
    assert main(["convert", *names]) == 0 and tree(project) == before
    assert main(["convert", *names, "--write"]) == 0
    together = tree(project)
    assert f"`{other}.py`" in (project / "MULTI_GPU.md").read_text()
    assert "`one.py`" in (project / f"MULTI_GPU_{other}.md").read_text()
    assert (project / "utils.py").read_text().count("import multigpu as rd") == 1
    assert main(["convert", *names, "--write"]) == 0 and tree(project) == together
    assert main(["convert", *names, "--undo"]) == 0 and tree(project) == before
    for name in ("one", other):
        assert convert(project, name, "--write") == 0
    pages = {"MULTI_GPU.md", f"MULTI_GPU_{other}.md"}
    one_by_one = tree(project)
    code = [name for name in one_by_one if name not in pages and not name.startswith(".retrofit/")]
    assert {name: one_by_one[name] for name in code} == {name: together[name] for name in code}


@pytest.mark.parametrize("problem", ["refused", "taken"])
def test_scripts_that_are_named_together_are_converted_all_or_none(
    project: Path, problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "sub").mkdir()
    (project / "sub" / "last.py").write_text(
        "print()\n" if problem == "refused" else SCRIPT.replace("import utils", "")
    )
    if problem == "taken":
        (project / "sub" / "multigpu.py").write_text("# mine\n")
    before = tree(project)
    names = [str(project / name) for name in ("one.py", "more.py", "sub/last.py")]
    assert main(["convert", *names, "--write"]) == (1 if problem == "refused" else 2)
    assert tree(project) == before
    assert ("no loop with a backward call" if problem == "refused" else "needs this name") in capsys.readouterr().err
