"""A run's copy of the project: what is copied, what is linked, and that snapshots are independent of it."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from pathlib import Path

import pytest

from retrofit.verify.processes import project_copy
from retrofit.verify.processes.project_copy import CopyReport, copy_project
from retrofit.verify.trace.filesystem.snapshot import snapshot

KIB = 1024


@pytest.fixture
def source(tmp_path):
    folder = tmp_path / "mine"
    folder.mkdir()
    return folder


@pytest.fixture
def target(tmp_path):
    return tmp_path / "run" / "project"


def fill(folder, files):
    """Write {name: size or text} into `folder`."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * content if isinstance(content, int) else content.encode())


def kind(path):
    if path.is_symlink():
        return f"-> {os.readlink(path)}"
    return "folder" if path.is_dir() else "file"


def test_small_files_are_copied_and_large_ones_linked(source, target):
    fill(
        source, {"train.py": "print()", "src/model.py": "x", "runs/1/last.pt": 1100 * KIB, "runs/1/log.txt": 1024 * KIB}
    )
    report = copy_project(source, target)
    assert report == CopyReport(num_copied=3, num_linked=1)
    assert kind(target / "train.py") == kind(target / "runs" / "1" / "log.txt") == "file"
    assert kind(target / "runs" / "1" / "last.pt") == f"-> {source}/runs/1/last.pt"
    assert (target / "train.py").read_text() == "print()"
    assert copy_project(source, target.with_name("second"), max_copied_mib=2).num_linked == 0


def test_permissions_and_times_are_kept(source, target):
    fill(source, {"run.sh": "echo", "fixed.txt": "x"})
    (source / "run.sh").chmod(0o755)
    (source / "fixed.txt").chmod(0o444)
    os.utime(source / "fixed.txt", (1, 1))
    copy_project(source, target)
    assert (target / "run.sh").stat().st_mode & 0o777 == 0o755
    assert (target / "fixed.txt").stat().st_mode & 0o777 == 0o444
    assert (target / "fixed.txt").stat().st_mtime == 1


def test_a_data_set_is_linked_as_a_whole(source, target):
    fill(source, {f"data/{split}/{number}.png": 1 for split in ("train", "val") for number in range(8)})
    fill(source, {"train.py": "", "few/1.png": 1})
    report = copy_project(source, target, max_entries=10)
    assert report == CopyReport(num_copied=2, num_linked=1, linked_folders=["data"])
    assert kind(target / "data") == f"-> {source}/data" and kind(target / "few") == "folder"


@pytest.mark.parametrize("code", ["data/loader.py", "data/loader/__init__.py"])
def test_a_folder_of_code_is_copied_and_the_data_in_it_linked(source, target, code):
    fill(source, {f"data/images/{number}.png": 1 for number in range(20)})
    fill(source, {code: "x = 1"})
    report = copy_project(source, target, max_entries=10)
    assert report.linked_folders == ["data/images"]
    assert kind(target / code) == "file"


def test_files_of_a_crowded_folder_are_linked_but_for_the_program(source, target):
    fill(source, {f"{number:02}.png": 1 for number in range(20)})
    fill(source, {"train.py": "", "config.yaml": ""})
    report = copy_project(source, target, max_entries=10)
    assert report == CopyReport(num_copied=2, num_linked=20)
    assert kind(target / "train.py") == kind(target / "config.yaml") == "file"


def test_beyond_the_limit_only_the_program_is_copied(source, target, monkeypatch):
    fill(
        source, {"a/1.bin": 600 * KIB, "a/2.bin": 600 * KIB, "a/3.bin": 300 * KIB, "z/train.py": "", "z/names.txt": ""}
    )
    monkeypatch.setattr(project_copy, "MOST_COPIED_MIB", 1)
    report = copy_project(source, target)
    assert report == CopyReport(num_copied=4, num_linked=1)
    assert target.joinpath("a/2.bin").is_symlink() and not target.joinpath("a/3.bin").is_symlink()
    monkeypatch.setattr(project_copy, "MOST_COPIED_FILES", 1)
    report = copy_project(source, target.with_name("second"))
    assert report == CopyReport(num_copied=3, num_linked=2)


def test_caches_are_left_out_and_environments_linked(source, target):
    fill(source, {f"{name}/x.py": "" for name in ("__pycache__", ".mypy_cache", "src/__pycache__", "node_modules")})
    fill(source, {".venv/bin/python": "", "my_env/pyvenv.cfg": "", "conda/conda-meta/history": "", "src/a.py": ""})
    report = copy_project(source, target)
    assert sorted(os.listdir(target)) == [".venv", "conda", "my_env", "src"]
    assert report.linked_folders == [".venv", "conda", "my_env"]
    assert os.listdir(target / "src") == ["a.py"]


def test_the_scripts_commit_can_be_asked_for(source, target):
    fill(source, {"train.py": "x"})
    git = ["git", "-c", "user.name=n", "-c", "user.email=e"]
    for arguments in (["init", "-q"], ["add", "."], ["commit", "-qm", "first"]):
        subprocess.run([*git, *arguments], cwd=source, check=True)
    copy_project(source, target, max_copied_mib=0)
    ask = ["git", "rev-parse", "HEAD"]
    hashes = [subprocess.check_output(ask, cwd=folder) for folder in (source, target)]
    assert hashes[0] == hashes[1]
    assert kind(target / ".git" / "objects").startswith("->") and kind(target / ".git" / "index") == "file"


def test_links_keep_their_target_or_point_into_the_copy(source, target, tmp_path):
    fill(tmp_path / "elsewhere", {"data/a.txt": "a"})
    fill(source, {"runs/1/last.pt": "x"})
    links = {
        "absolute": tmp_path / "elsewhere",
        "relative": "../elsewhere/data",
        "gone": "/nowhere",
        "inside": "runs/1",
        "inside_absolute": source / "runs" / "1" / "last.pt",
        "inside_by_alias": tmp_path / "alias" / "runs" / "1",
        "runs/latest": "1",
        "through": "absolute/data",
    }
    for name, place in links.items():
        (source / name).symlink_to(place)
    (tmp_path / "alias").symlink_to(source)
    report = copy_project(tmp_path / "alias", target)
    assert report == CopyReport(num_copied=1, num_linked=8)
    assert kind(target / "absolute") == f"-> {tmp_path}/elsewhere"
    assert kind(target / "relative") == f"-> {tmp_path}/elsewhere/data"
    assert kind(target / "gone") == "-> /nowhere"
    assert (
        kind(target / "inside") == kind(target / "inside_by_alias") == "-> runs/1"
        and kind(target / "runs" / "latest") == "-> 1"
    )
    assert (target / "inside_absolute").resolve() == target / "runs" / "1" / "last.pt"
    assert (target / "through" / "a.txt").read_text() == "a"


def test_special_and_unreadable_files_are_skipped(source, target, monkeypatch):
    fill(source, {"a.txt": "a", "secret.txt": "x"})
    os.mkfifo(source / "pipe")
    copy2 = shutil.copy2

    def refuse(path, copy):
        if path.endswith("secret.txt"):
            raise PermissionError(13, "Permission denied", path)
        return copy2(path, copy)

    monkeypatch.setattr(project_copy.shutil, "copy2", refuse)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(source / "socket"))
        report = copy_project(source, target)
    assert report == CopyReport(num_copied=1, num_skipped=3)
    assert os.listdir(target) == ["a.txt"]


def test_a_target_inside_the_source_is_not_copied_into_itself(source):
    fill(source, {"train.py": "x", "out/report.txt": "x"})
    target = source / "out" / "many" / "project"
    report = copy_project(source, target)
    assert report.num_copied == 2
    assert sorted(str(path.relative_to(target)) for path in target.rglob("*")) == [
        "out",
        "out/many",
        "out/report.txt",
        "train.py",
    ]
    copy_project(source, source / "out" / "one" / "project", leave_out=[source / "out"])
    assert os.listdir(source / "out" / "one" / "project") == ["train.py"]


def test_wrong_folders(source, tmp_path):
    with pytest.raises(ValueError, match=r"project .*/missing is not a folder; give the folder"):
        copy_project(tmp_path / "missing", tmp_path / "target")
    (tmp_path / "there").mkdir()
    with pytest.raises(FileExistsError):
        copy_project(source, tmp_path / "there")


class TestSnapshot:
    def test_a_snapshot_is_independent_of_the_run(self, source, target, tmp_path):
        fill(source, {"big.bin": 1100 * KIB, "train.py": "x"})
        copy_project(source, target)
        fill(target, {"runs/last.pt": "epoch 1"})
        (target / "latest").symlink_to(target / "runs" / "last.pt")
        snapshot(target, tmp_path / "snapshot")
        with open(target / "runs" / "last.pt", "r+") as file:
            file.write("EPOCH")
        assert (tmp_path / "snapshot" / "runs" / "last.pt").read_text() == "epoch 1"
        assert (tmp_path / "snapshot" / "latest").read_text() == "epoch 1"
        assert kind(tmp_path / "snapshot" / "big.bin") == f"-> {source}/big.bin"
        assert kind(tmp_path / "snapshot" / "train.py") == "file"
        assert not (tmp_path / "snapshot.tmp").exists()

    def test_a_snapshot_appears_complete_or_not_at_all(self, target, tmp_path, monkeypatch):
        fill(target, {"a.txt": "a", "b.txt": "b"})
        copy2 = shutil.copy2

        def full(path, copy):
            if path.endswith("b.txt"):
                raise OSError(28, "No space left on device")
            return copy2(path, copy)

        monkeypatch.setattr(shutil, "copy2", full)
        with pytest.raises(OSError, match="No space left"):
            snapshot(target, tmp_path / "snapshot")
        assert not (tmp_path / "snapshot").exists()
        monkeypatch.setattr(shutil, "copy2", copy2)
        snapshot(target, tmp_path / "snapshot")
        assert sorted(os.listdir(tmp_path / "snapshot")) == ["a.txt", "b.txt"]

    def test_files_that_vanish_meanwhile_are_left_out(self, target, tmp_path, monkeypatch):
        fill(target, {"a.txt": "a", "gone.tmp": "x", "folder/b.txt": "b"})
        os.mkfifo(target / "pipe")
        scandir = os.scandir

        def late(folder):
            entries = scandir(folder)
            if str(folder) == str(target):
                found = list(entries)
                (target / "gone.tmp").unlink(missing_ok=True)
                shutil.rmtree(target / "folder", ignore_errors=True)
                return Listed(found)
            return entries

        monkeypatch.setattr(os, "scandir", late)
        snapshot(target, tmp_path / "snapshot")
        monkeypatch.undo()
        assert (tmp_path / "snapshot" / "a.txt").read_text() == "a"
        assert not (tmp_path / "snapshot" / "gone.tmp").exists()

    def test_a_snapshot_is_never_replaced(self, target, tmp_path):
        fill(target, {"a.txt": "a"})
        snapshot(target, tmp_path / "snapshot")
        with pytest.raises(FileExistsError, match=r"snapshot .* exists; give a folder"):
            snapshot(target, tmp_path / "snapshot")

    def test_a_snapshot_into_the_project_itself_is_refused(self, target):
        fill(target, {"a.txt": "a"})
        snapshot(target, target / "snapshot")
        assert os.listdir(target / "snapshot") == ["a.txt"]


class Listed(list):
    """What os.scandir returns, from a list."""

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        return None


def test_the_project_of_this_repository_can_be_imported_from_its_copy(target):
    root = Path(__file__).resolve().parents[1]
    copy_project(root, target)
    for name in ("train.py", "retrofit/distributed/__init__.py", "configs"):
        assert (target / name).exists() and not (target / name).is_symlink()
