"""A folder that came from anywhere: none of its files is run, nothing outside it is written, nothing in it hangs."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from convert.test_command import SCRIPT, files_in

from retrofit.cli import main

ROOT = Path(__file__).resolve().parents[2]
# Not in the standard library of this system, but looked for by modules that are.
OPTIONAL = ("msvcrt", "winreg", "_winapi", "nt", "_scproxy", "java", "vms_lib", "org", "sitecustomize", "usercustomize")
STANDARD = getattr(sys, "stdlib_module_names", ("argparse", "ast", "tokenize", "json", "typing", "subprocess", "re"))
PACKAGES = ("torch", "numpy", "rich", "psutil", "matplotlib", "yaml")
SECRET = "outside"


def plant(folder: Path, names: set[str]) -> None:
    """Put a module of each name into a folder that leaves a mark when it is run."""
    for name in names:
        (folder / f"{name}.py").write_text(f"open({str(folder / 'RUN')!r} + '_{name}', 'w').close()\n")


def marks(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.parent.rglob("RUN*"))


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "train.py").write_text(SCRIPT.replace("import argparse", "import argparse, json"))
    return tmp_path / "project"


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "secret").write_text(SECRET)
    return tmp_path / "elsewhere"


@pytest.fixture(autouse=True)
def _deadline() -> Iterator[None]:
    """Interrupt a test that waits for something."""

    def give_up(number: int, frame: object) -> None:
        raise TimeoutError("it hangs")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(120)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


# ---- modules


def loaded_by_python(folder: Path) -> set[str]:
    """Return what Python loads before any code of ours, from the current folder too for `python -m`."""
    (folder / "loaded.py").write_text("import sys\nprint(*sys.modules)\n")
    ended = subprocess.run([sys.executable, "-m", "loaded"], cwd=folder, capture_output=True, text=True, timeout=100)
    return set(ended.stdout.split())


@pytest.mark.parametrize("start", ["module", "command", "PYTHONPATH"])
def test_no_module_of_the_folder_is_imported(project: Path, tmp_path: Path, start: str) -> None:
    command = tmp_path / "bin" / "retrofit"
    command.parent.mkdir()
    command.write_text("import sys\nfrom retrofit.__main__ import main\nsys.exit(main())\n")
    prefix = ["-m", "retrofit"] if start == "module" else [str(command)]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    optional = set(OPTIONAL)
    if start == "PYTHONPATH":
        environ["PYTHONPATH"] = f"{ROOT}{os.pathsep}."
        optional -= {"sitecustomize", "usercustomize"}  # Python itself loads them, at its start
    plant(project, (set(STANDARD) | optional) - (loaded_by_python(tmp_path) if start != "command" else set()))
    commands = [["check", "train.py"], ["convert", "train.py", "--write"]]
    if start == "module":
        commands += [["convert", "train.py", "--undo"], ["check", "--format", "sarif", "train.py"]]
        commands += [["verify", "gone.py"]]
    for arguments in commands:
        ended = subprocess.run(
            [sys.executable, *prefix, *arguments], cwd=project, env=environ, capture_output=True, text=True, timeout=100
        )
        assert "Traceback" not in ended.stderr and ended.returncode in (0, 1, 2), ended.stderr
        assert marks(project) == [], arguments
        if arguments[0] != "verify":
            assert "error" not in ended.stderr


def test_the_doctor_and_its_processes_do_not_either(project: Path) -> None:
    plant(project, {*STANDARD, *OPTIONAL, *PACKAGES} - loaded_by_python(project.parent))
    ended = subprocess.run(
        [sys.executable, "-m", "retrofit", "doctor", "--no-allreduce", "--json"],
        cwd=project, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert marks(project) == [] and "findings" in json.loads(ended.stdout), ended.stderr


# ---- git


def test_no_program_of_the_repository_is_run(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def git(*arguments: str) -> None:
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *arguments], cwd=project, check=True,
                       capture_output=True, timeout=100)  # fmt: skip

    def program(name: str, folder: Path = project) -> str:
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\ntouch {project / 'RUN'}_{name}\ncat\n")
        path.chmod(0o755)
        return str(path)

    git("init", "-q")
    (project / ".gitattributes").write_text("*.py filter=mine diff=mine\n")
    git("add", ".gitattributes", "train.py")
    git("commit", "-qm", "start")
    settings = ["core.fsmonitor", "core.sshCommand", "core.pager", "pager.status", "core.editor", "diff.external",
                "diff.mine.textconv", "diff.mine.command", "filter.mine.clean", "filter.mine.process", "gpg.program",
                "core.alternateRefsCommand", "credential.helper", "core.askPass"]  # fmt: skip
    for setting in settings:
        git("config", setting, program(setting.replace(".", "-")))
    hooks = project / "hooks"
    git("config", "core.hooksPath", str(hooks))
    for folder in (hooks, project / ".git" / "hooks"):
        for hook in ("post-index-change", "fsmonitor-watchman", "pre-auto-gc", "reference-transaction"):
            program(hook, folder)
    program("git")  # found by a search path with the current folder in it
    os.utime(project / "train.py", (1, 1))  # git now has to compare the contents
    monkeypatch.setenv("PATH", f".:{project}::{os.environ['PATH']}")
    for name in ("GIT_EXTERNAL_DIFF", "GIT_DIR", "GIT_INDEX_FILE"):
        monkeypatch.setenv(name, str(project / "git"))
    monkeypatch.chdir(project)
    assert main(["convert", "train.py", "--write"]) == 0
    assert marks(project) == []
    assert main(["convert", "train.py", "--undo"]) == 0
    (project / "train.py").write_text(SCRIPT + "print()\n")
    assert main(["convert", "train.py", "--write"]) == 2
    assert marks(project) == []


def test_a_linked_work_tree_is_a_work_tree(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def git(*arguments: str, folder: Path = project) -> None:
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *arguments], cwd=folder, check=True,
                       capture_output=True, timeout=100)  # fmt: skip

    git("init", "-q")
    git("config", "core.autocrlf", "false")
    git("add", ".")
    git("commit", "-qm", "start")
    git("pack-refs", "--all")
    git("worktree", "add", "../second")
    second = project.parent / "second" / "train.py"
    assert main(["convert", str(second)]) == 0
    second.write_text(second.read_text() + "print()\n")
    assert main(["convert", str(second), "--write"]) == 2 and "uncommitted" in capsys.readouterr().err
    git("commit", "-qam", "print", folder=second.parent)
    assert main(["convert", str(second), "--write"]) == 0


def test_a_repository_that_git_cannot_read_is_not_clean(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / ".git").mkdir()
    (project / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    assert main(["convert", str(project / "train.py"), "--write"]) == 2
    assert "git cannot tell" in (message := capsys.readouterr().err) and "--force writes" in message
    assert main(["convert", str(project / "train.py"), "--write", "--force"]) == 0


# ---- links


def link_file(path: Path, elsewhere: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(elsewhere / "secret")


def link_nothing(path: Path, elsewhere: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(elsewhere / "new")


def link_folder(path: Path, elsewhere: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(elsewhere)


FILES = ("MULTI_GPU.md", "train_torchrun.sh", "train_ddp.sh", "multigpu.py",
         ".retrofit/0001.json", ".retrofit/new-0", ".train.py.retrofit", ".vscode/launch.json")  # fmt: skip
FOLDERS = (".retrofit", ".retrofit/originals", ".vscode")
LEFT_ALONE = {".train.py.retrofit", ".vscode/launch.json", ".vscode", ".retrofit/new-0"}


@pytest.mark.parametrize(
    ("place", "link"),
    [*((name, link) for name in FILES for link in (link_file, link_nothing)), *((n, link_folder) for n in FOLDERS)],
)
def test_no_link_is_followed(
    project: Path, elsewhere: Path, place: str, link: Callable[[Path, Path], None], capsys: pytest.CaptureFixture[str]
) -> None:
    link(project / place, elsewhere)
    before = files_in(project)
    status = main(["convert", str(project / "train.py"), "--write"])
    assert files_in(elsewhere) == {"secret": SECRET.encode()}
    if place in LEFT_ALONE:
        assert status == 0 and main(["convert", str(project / "train.py"), "--undo"]) == 0
    else:
        said = capsys.readouterr().err
        assert status == 2 and (" is a link, " in said or "multigpu.py is not of retrofit" in said)
    after = files_in(project)
    before.pop(".retrofit/new-0", None)  # such a name is the command's own
    assert after == before and files_in(elsewhere) == {"secret": SECRET.encode()}


# ---- a journal that no conversion wrote


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


EVIL = b"#!/bin/sh\ntouch RUN\n"


@pytest.mark.parametrize("state", ["complete", "writing", "undoing"])
@pytest.mark.parametrize(
    "path",
    ["{elsewhere}/secret", "../elsewhere/secret", "a/../../elsewhere/secret", "linked/secret", "link", ".git/config",
     ".GIT/config", "sub/.git/hooks/pre-commit", ".retrofit/0002.json", ".envrc", "", ".", "/", "a//b"],
)  # fmt: skip
@pytest.mark.parametrize("deletes", [False, True])
def test_a_forged_journal_changes_nothing_elsewhere(
    project: Path, elsewhere: Path, path: str, deletes: bool, state: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "linked").symlink_to(elsewhere)
    (project / "link").symlink_to(elsewhere / "secret")
    for name in (".git/config", ".GIT/config", "sub/.git/hooks/pre-commit", ".envrc"):
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text(SECRET)
    originals = project / ".retrofit" / "originals"
    originals.mkdir(parents=True)
    (originals / sha256(EVIL)).write_bytes(EVIL)
    kept = f".retrofit/originals/{sha256(EVIL)}"
    entry = {"path": path.format(elsewhere=elsewhere), "after": {"sha256": sha256(SECRET.encode()), "mode": 0o644}}
    entry["before"] = None if deletes else {"sha256": sha256(EVIL), "mode": 0o4755}
    journal = {"script": "train.py", "entries": [entry], "folders": ["../elsewhere"], "state": state}
    for folders in ([], ["../elsewhere", str(elsewhere)]):
        (project / ".retrofit" / "0001.json").write_text(json.dumps({**journal, "folders": folders}))
        before = files_in(project)
        for arguments in (["--undo"], ["--write", "--force"]) if state != "complete" else (["--undo"],):
            assert main(["convert", str(project / "train.py"), *arguments]) == 2
            assert "Traceback" not in capsys.readouterr().err
            after = files_in(project)
            after.setdefault(kept, before.get(kept))  # what no journal needs may go
            assert after == {kept: None, **before} and files_in(elsewhere) == {"secret": SECRET.encode()}


@pytest.mark.parametrize(
    "text", ["", "[]", "null", "{}", "[" * 100_000, '{"entries": 3}', '{"entries": [{}], "script": [], "state": 1}']
)
def test_an_invalid_journal_is_refused(project: Path, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    (project / ".retrofit").mkdir()
    (project / ".retrofit" / "0001.json").write_text(text)
    assert main(["convert", str(project / "train.py"), "--undo"]) == 2
    assert "is not a journal of a conversion" in capsys.readouterr().err


def test_a_replaced_backup_is_not_restored(project: Path, elsewhere: Path) -> None:
    script = project / "train.py"
    assert main(["convert", str(script), "--write"]) == 0
    after = script.read_bytes()
    (kept,) = (project / ".retrofit" / "originals").iterdir()
    kept.write_bytes(EVIL)
    assert main(["convert", str(script), "--undo"]) == 2 and script.read_bytes() == after
    kept.unlink()
    kept.symlink_to(elsewhere / "secret")
    assert main(["convert", str(script), "--undo"]) == 2 and script.read_bytes() == after


def test_no_special_permission_is_restored(project: Path) -> None:
    script = project / "train.py"
    script.chmod(0o640)
    assert main(["convert", str(script), "--write"]) == 0 and stat.S_IMODE(script.stat().st_mode) == 0o640
    journal = project / ".retrofit" / "0001.json"
    journal.write_text(journal.read_text().replace(f'"mode": {0o640}', f'"mode": {0o4640}'))
    assert main(["convert", str(script), "--undo"]) == 0 and stat.S_IMODE(script.stat().st_mode) == 0o640


# ---- what is no file, or too much of one


def fifo(path: Path) -> None:
    os.mkfifo(path)


def endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


def waiting(path: Path) -> None:
    path.symlink_to("/dev/tty")


def huge(path: Path) -> None:
    with open(path, "wb") as file:
        file.truncate(2**40)


def loop(path: Path) -> None:
    path.symlink_to(path.name)


def folder(path: Path) -> None:
    path.mkdir()


KINDS = (fifo, endless, waiting, huge, loop, folder)


@pytest.mark.parametrize("make", KINDS)
def test_nothing_hangs(project: Path, make: Callable[[Path], None], capsys: pytest.CaptureFixture[str]) -> None:
    script = project / "train.py"
    make(project / "odd.py")
    assert main(["check", str(project / "odd.py")]) == 2 and main(["convert", str(project / "odd.py")]) == 2
    assert main(["check", str(project)]) == 1 and main(["convert", str(project)]) == 0  # it finds the other script
    script.write_text("import odd\n" + SCRIPT)
    assert main(["check", str(script)]) == 1
    assert main(["convert", str(script)]) == int(make is huge)
    script.write_text(SCRIPT)
    for name in ("MULTI_GPU.md", "train_ddp.sh", ".vscode/launch.json", ".retrofit/0001.json", ".git/HEAD", ".git"):
        place = project / name
        place.parent.mkdir(exist_ok=True)
        make(place)
        main(["convert", str(script), "--write"])
        main(["convert", str(script), "--undo"])
        assert script.read_text() == SCRIPT, name
        place.unlink() if not place.is_dir() or place.is_symlink() else place.rmdir()
        if not any(place.parent.iterdir()):
            place.parent.rmdir()


def test_an_unknown_encoding_is_reported(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("undefined", "idna", "zlib", "hex", "rot13", "../../x", "os"):
        (project / "train.py").write_text(f"# coding: {name}\nx = '\\u00e9..'\n")
        assert main(["check", str(project / "train.py")]) in (0, 2)
        assert "Traceback" not in capsys.readouterr().err
