"""Files and folders as they are found: links, names that a shell would take apart, places that cannot be written."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from retrofit.cli import main

ROOT = Path(__file__).resolve().parents[2]
FOLDER = 'it\'s "my" $HOME & größe 100% | `x` #1'
SCRIPT = 'tr\'ain $HOME "ü" {0} | & ;.py'
ORDINARY_USER = 65534
TEXT = """\
import argparse

import torch
from torch.utils.data import DataLoader, TensorDataset

import parts

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.1)
args = parser.parse_args()
torch.manual_seed(0)
loader = DataLoader(TensorDataset(torch.randn(16, 3)), 4, shuffle=True)
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
for (x,) in loader:
    optimizer.zero_grad()
    loss = model(x).pow(2).mean()
    loss.backward()
    optimizer.step()
parts.save(model)
"""
PARTS = 'import torch\n\n\ndef save(model):\n    torch.save(model.state_dict(), "model.pt")\n'


def write_project(folder: Path, name: str = "train.py") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "parts.py").write_text(PARTS)
    (folder / name).write_text(TEXT)
    return folder / name


def files_in(folder: Path) -> dict[str, bytes | None]:
    """Return all files with their content, and all folders."""
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A converted script whose path holds everything that a shell, Markdown and str.format give a meaning."""
    script = write_project(tmp_path_factory.mktemp("odd") / FOLDER, SCRIPT)
    assert main(["convert", str(script), "--write"]) == 0
    return script


@pytest.mark.usefixtures("forked_python")
@pytest.mark.parametrize("name", ["train_torchrun.sh", "train_ddp.sh"])
def test_the_generated_scripts_start_a_script_with_an_odd_name(odd: Path, name: str, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHON": sys.executable, "NPROC_PER_NODE": "1", "CUDA_VISIBLE_DEVICES": ""}
    environment.update(MASTER_PORT="0", OMP_NUM_THREADS="1")
    command = ["bash", str(odd.parent / name), "--help"]
    result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    assert f"usage: {SCRIPT} [-h] [--lr LR]" in result.stdout and "--distributed" in result.stdout


def test_the_commands_of_the_guide_quote_an_odd_name(odd: Path) -> None:
    page = (odd.parent / "MULTI_GPU.md").read_text(encoding="utf-8")
    (line,) = [line for line in page.splitlines() if line.startswith("| take the conversion back |")]
    command = line.split("`", 1)[1].rpartition("`")[0].replace("\\|", "|")
    shown = subprocess.run(["bash", "-c", f'retrofit() {{ printf "%s\\n" "$@"; }}; {command}'], capture_output=True)
    assert shown.stdout.decode().splitlines() == ["convert", SCRIPT, "--undo"]


def test_the_debug_configuration_has_an_odd_name(odd: Path) -> None:
    (debug,) = json.loads((odd.parent / ".vscode" / "launch.json").read_text(encoding="utf-8"))["configurations"]
    assert debug["program"] == "${workspaceFolder}/" + SCRIPT


def test_a_name_that_looks_like_an_option(tmp_path: Path) -> None:
    write_project(tmp_path, "-m.py")
    assert main(["convert", str(tmp_path / "-m.py"), "--write"]) == 0
    assert '--nproc_per_node="${NPROC_PER_NODE}" ./-m.py "$@"' in (tmp_path / "train_torchrun.sh").read_text()


def test_a_folder_name_that_is_not_text(tmp_path: Path) -> None:
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/gr\xf6sse"))
    script = write_project(folder, os.fsdecode(b"tr\xe4in.py"))
    for arguments in (["check"], ["convert", "--write"], ["check"], ["convert", "--undo"]):
        command = [sys.executable, "-m", "retrofit", *arguments, str(script)]
        result = subprocess.run(command, cwd=ROOT, capture_output=True, timeout=300)
        assert b"Traceback" not in result.stderr and result.returncode in (0, 1), result.stderr
    assert script.read_text() == TEXT


def test_the_undo_command_is_shown_with_its_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = write_project(tmp_path / "project" / "tools")
    root = tmp_path / "project"
    assert main(["convert", str(script), "--root", str(root), "--write"]) == 0
    assert f"`retrofit convert {script} --root {root} --undo` takes it back" in capsys.readouterr().err
    assert main(["convert", str(script), "--root", str(root), "--undo"]) == 0
    assert files_in(root) == {"tools": None, "tools/train.py": TEXT.encode(), "tools/parts.py": PARTS.encode()}


# ---- links


def test_symbolic_links_to_a_script_and_a_module(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = write_project(tmp_path / "real")
    shutil.move(script.with_name("parts.py"), tmp_path / "elsewhere.py")
    script.with_name("parts.py").symlink_to(tmp_path / "elsewhere.py")
    link = tmp_path / "start" / "run.py"
    link.parent.mkdir()
    link.symlink_to(script)
    assert main(["convert", str(link), "--write"]) == 2
    assert "parts.py is a link: " in (errors := capsys.readouterr().err) and "name with --root a folder" in errors
    assert script.read_text() == TEXT and (tmp_path / "elsewhere.py").read_text() == PARTS
    assert main(["convert", str(link), "--root", str(tmp_path), "--write"]) == 0
    assert link.is_symlink() and script.with_name("parts.py").is_symlink()
    assert "rd.setup_distributed()" in script.read_text()
    assert "if rd.is_main_process():" in (tmp_path / "elsewhere.py").read_text()
    assert main(["check", str(link)]) == 0
    command = [sys.executable, str(link)]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, timeout=300)
    assert main(["convert", str(link), "--root", str(tmp_path), "--undo"]) == 0
    assert script.read_text() == TEXT and (tmp_path / "elsewhere.py").read_text() == PARTS


# ---- what cannot be written


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder that another user can enter."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        yield Path(name)


def convert_as_ordinary_user(script: Path) -> tuple[int, str]:
    """Convert in a child process without root's right to write everywhere, and return its status and its errors."""
    import retrofit.convert.added.files
    import retrofit.convert.plan  # noqa: F401  (the other user cannot read this folder, perhaps)

    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        errors = io.StringIO()
        status = 99
        try:
            if os.getuid() == 0:
                os.setgroups([])
                os.setgid(ORDINARY_USER)
                os.setuid(ORDINARY_USER)
            with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(io.StringIO()):
                status = main(["convert", str(script), "--write"])
        except BaseException:
            errors.write(traceback.format_exc())
        os.write(writer, errors.getvalue().encode())
        os._exit(status)
    os.close(writer)
    with os.fdopen(reader) as file:
        text = file.read()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), text


def own(folder: Path) -> None:
    """Give a folder to the user who is to convert it."""
    if os.getuid() == 0:
        for path in (folder, *folder.rglob("*")):
            os.chown(path, ORDINARY_USER, ORDINARY_USER)


def read_only_script(folder: Path) -> None:
    (folder / "train.py").chmod(0o444)


def read_only_module(folder: Path) -> None:
    (folder / "parts.py").chmod(0o444)


def read_only_folder(folder: Path) -> None:
    folder.chmod(0o555)


def read_only_vscode(folder: Path) -> None:
    (folder / ".vscode").mkdir()
    own(folder)
    (folder / ".vscode").chmod(0o555)


def unreadable_guide(folder: Path) -> None:
    (folder / "MULTI_GPU.md").write_text("mine")
    own(folder)
    (folder / "MULTI_GPU.md").chmod(0)


@pytest.mark.parametrize(
    "protect", [read_only_script, read_only_module, read_only_folder, read_only_vscode, unreadable_guide]
)
def test_a_failed_write_leaves_every_file_unchanged(shared: Path, protect: Callable[[Path], None]) -> None:
    script = write_project(shared / "project")
    own(script.parent)
    protect(script.parent)
    before = files_in(script.parent) if os.getuid() == 0 or protect is not unreadable_guide else {}
    status, errors = convert_as_ordinary_user(script)
    assert status == 2 and "retrofit convert: error: " in errors and "Traceback" not in errors, errors
    if before:
        assert files_in(script.parent) == before
    script.parent.chmod(0o755)


def test_an_ordinary_user_can_write(shared: Path) -> None:
    script = write_project(shared / "project")
    own(script.parent)
    status, errors = convert_as_ordinary_user(script)
    assert status == 0, errors
    assert "rd.setup_distributed()" in script.read_text()


# ---- what is in a file


def test_form_feeds_do_not_end_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = write_project(tmp_path)
    script.write_bytes(
        TEXT.replace("\nparser", "\n\x0c\nparser", 1).replace("    loss.back", "\x0c    loss.back").encode()
    )
    assert main(["convert", str(script)]) == 0
    diff = capsys.readouterr().out
    assert "No newline" not in diff
    applied = subprocess.run(
        ["git", "apply", "-"], cwd=tmp_path, input=diff, text=True, capture_output=True, timeout=300
    )
    assert applied.returncode == 0, applied.stderr
    shown = script.read_bytes()
    write_project(tmp_path)
    script.write_bytes(
        TEXT.replace("\nparser", "\n\x0c\nparser", 1).replace("    loss.back", "\x0c    loss.back").encode()
    )
    assert main(["convert", str(script), "--write"]) == 0
    assert script.read_bytes() == shown and shown.count(b"\x0c") == 2


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_the_diff_without_a_newline_at_the_end_is_a_patch(
    tmp_path: Path, newline: str, mark: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    script = write_project(tmp_path)
    data = mark + TEXT.rstrip().replace("\n", newline).encode()
    script.write_bytes(data)
    assert main(["convert", str(script)]) == 0
    diff = capsys.readouterr().out
    assert main(["convert", str(script), "--write"]) == 0
    converted = script.read_bytes()
    assert converted.startswith(mark) and converted.count(b"\n") == converted.count(newline.encode())
    script.write_bytes(data.removeprefix(mark))  # the diff is of text
    (tmp_path / "parts.py").write_text(PARTS)
    applied = subprocess.run(["git", "apply", "-"], cwd=tmp_path, input=diff.encode(), capture_output=True, timeout=300)
    assert applied.returncode == 0, applied.stderr.decode()
    assert script.read_bytes() == converted.removeprefix(mark)


def test_twenty_thousand_lines_around_a_training(tmp_path: Path) -> None:
    script = write_project(tmp_path)
    filler = "".join(f"def f{i}(x):\n    y = x + {i}\n    return f{i - 1}(y) if x else y\n\n\n" for i in range(1, 4000))
    script.write_text("def f0(x): return x\n" + filler + TEXT)
    assert main(["convert", str(script), "--write"]) == 0
    text = script.read_text()
    assert filler in text and "loader = rd.distribute_loader(loader)" in text
