"""The user's own files stay as they are, whatever a run does through the links of its copy."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from traced_child import OLD, Child, files_of, make_place, opened, tree, write

from retrofit.verify.trace.filesystem import private_copy
from retrofit.verify.trace.filesystem.private_copy import PrivateCopy

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def place(tmp_path):
    return make_place(tmp_path)


@pytest.fixture
def run(place):
    return lambda task, ignore=(): Child(task, place, ignore).events()


@pytest.fixture
def big(place):
    """`project/big.bin` is a link to the user's file."""
    (place / "original" / "big.bin").write_bytes(OLD)
    (place / "original" / "big.bin").chmod(0o640)
    (place / "project" / "big.bin").symlink_to(place / "original" / "big.bin")
    return place / "project" / "big.bin"


def low_level(flags):
    descriptor = os.open("big.bin", flags)
    os.write(descriptor, b"new")
    os.close(descriptor)


class TestCopyOnWrite:
    @pytest.mark.parametrize(
        ("task", "expected"),
        [
            (lambda: opened("big.bin", "wb"), b"new"),
            (lambda: opened("big.bin", "w+b"), b"new"),
            (lambda: opened("big.bin", "ab"), OLD + b"new"),
            (lambda: opened("big.bin", "r+b"), b"new" + OLD[3:]),
            (lambda: low_level(os.O_WRONLY | os.O_CREAT | os.O_TRUNC), b"new"),
            (lambda: low_level(os.O_RDWR), b"new" + OLD[3:]),
            (lambda: low_level(os.O_WRONLY | os.O_APPEND), OLD + b"new"),
            (lambda: Path("big.bin").write_bytes(b"new"), b"new"),
            (lambda: os.truncate("big.bin", 3), OLD[:3]),
            (lambda: write(Path("big.bin").absolute()), b"new"),
        ],
    )
    def test_a_write_changes_the_copy_and_not_the_original(self, place, run, big, task, expected):
        before = tree(place / "original")
        assert files_of(run(task)) == [("write", "big.bin")]
        assert tree(place / "original") == before
        assert big.read_bytes() == expected and not big.is_symlink()
        assert stat.S_IMODE(big.stat().st_mode) == 0o640
        assert os.listdir(place / "project") == ["big.bin"]

    def test_torch_and_numpy(self, place, run):
        for name in ("a.pt", "a.npy", "a.jit", "a.db"):
            (place / "original" / name).write_bytes(OLD)
            (place / "project" / name).symlink_to(place / "original" / name)
        before = tree(place / "original")

        def task():
            torch.save(torch.ones(3), "a.pt")
            np.save("a.npy", np.ones(3))
            torch.jit.save(torch.jit.script(nn.Linear(1, 1)), "a.jit")

        assert [path for _, path in files_of(run(task))] == ["a.pt", "a.npy", "a.jit"]
        assert tree(place / "original") == before
        assert torch.equal(torch.load(place / "project" / "a.pt"), torch.ones(3))
        assert np.load(place / "project" / "a.npy").sum() == 3
        assert torch.jit.load(place / "project" / "a.jit") is not None

    @pytest.mark.parametrize(
        "task",
        [lambda: os.chmod("big.bin", 0o600), lambda: os.utime("big.bin", (1, 1)), lambda: Path("big.bin").touch()],
    )
    def test_attributes(self, place, run, big, task):
        before = tree(place / "original")
        run(task)
        assert tree(place / "original") == before
        assert big.read_bytes() == OLD and not big.is_symlink()

    def test_reading_keeps_the_link(self, place, run, big):
        def task():
            assert Path("big.bin").read_bytes() == OLD
            with pytest.raises(FileExistsError):
                opened("big.bin", "xb")

        assert run(task) == []
        assert big.is_symlink()

    def test_a_removed_or_replaced_link_leaves_the_original(self, place, run, big):
        def task():
            write("other.txt")
            os.replace("other.txt", "big.bin")
            os.remove("big.bin")

        before = tree(place / "original")
        run(task)
        assert tree(place / "original") == before

    def test_a_link_to_nothing_does_not_create_the_users_file(self, place, run):
        (place / "project" / "gone.bin").symlink_to(place / "original" / "gone.bin")
        run(lambda: write("gone.bin"))
        assert list((place / "original").iterdir()) == []
        assert (place / "project" / "gone.bin").read_text() == "new"

    @pytest.mark.parametrize("mode", ["w", "a"])
    def test_a_read_only_file_stays_read_only(self, place, run, big, mode):
        (place / "original" / "big.bin").chmod(0o444)

        def task():
            with contextlib.nullcontext() if os.geteuid() == 0 else pytest.raises(PermissionError):
                opened("big.bin", mode)

        run(task)
        assert stat.S_IMODE(big.stat().st_mode) == 0o444
        assert (place / "original" / "big.bin").read_bytes() == OLD

    def test_without_room_the_event_names_the_file_of_the_user(self, place, run, big, monkeypatch):
        def no_room(source, target):
            Path(target).write_bytes(b"half")
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(private_copy.shutil, "copyfile", no_room)
        assert files_of(run(lambda: opened("big.bin", "r+b"))) == [("write", str(place / "original" / "big.bin"))]
        assert os.listdir(place / "project") == ["big.bin"]

    def test_links_within_the_project_stay(self, place, run):
        (place / "project" / "epoch1.bin").write_bytes(OLD)
        (place / "project" / "latest.bin").symlink_to("epoch1.bin")
        run(lambda: write("latest.bin"))
        assert (place / "project" / "latest.bin").is_symlink()
        assert (place / "project" / "epoch1.bin").read_text() == "new"

    def test_a_link_to_a_link_out_of_the_project(self, place, run, big):
        (place / "project" / "latest.bin").symlink_to("big.bin")
        before = tree(place / "original")
        run(lambda: write("latest.bin"))
        assert tree(place / "original") == before
        assert (place / "project" / "latest.bin").read_text() == "new"

    def test_a_file_that_another_rank_replaced_meanwhile_is_unchanged(self, place, big):
        copy = PrivateCopy(str(place / "project"))
        thread = threading.Thread(target=copy.own, args=[str(big)])
        with copy._lock():
            thread.start()
            thread.join(0.3)
            big.unlink()
            big.write_text("of another rank")
            number = big.stat().st_ino
        thread.join()
        assert (big.read_text(), big.stat().st_ino) == ("of another rank", number)

    @pytest.mark.parametrize("mode", ["w", "a"])
    def test_ranks_that_write_at_the_same_time_lose_nothing(self, place, mode):
        names = [f"big{number}.txt" for number in range(50)]
        for name in names:
            (place / "original" / name).write_text("old\n")
            (place / "project" / name).symlink_to(place / "original" / name)
        before = tree(place / "original")

        def task():
            for name in names:
                with open(name, mode if os.getpid() % 2 else "a") as file:
                    file.write(f"{os.getpid()}\n")

        children = [Child(task, place) for _ in range(4)]
        for child in children:
            child.events()
        assert tree(place / "original") == before
        for name in names:
            lines = (place / "project" / name).read_text().splitlines()
            assert not (place / "project" / name).is_symlink()
            if mode == "a":
                assert sorted(lines) == sorted(["old", *(str(child.pid) for child in children)])


@pytest.fixture
def data(place):
    """`project/data` is a link to a folder of the user with 20 files in each of 2 folders."""
    for name in ("train", "val"):
        folder = place / "original" / "data" / name
        folder.mkdir(parents=True)
        for number in range(20):
            (folder / f"{number}.txt").write_text(f"{name} {number}")
    (place / "project" / "data").symlink_to(place / "original" / "data")
    return place / "project" / "data"


def rename_in_data():
    os.rename("data/train/0.txt", "data/val/zero.txt")


def remove_by_descriptor():
    folder = os.open("data/train", os.O_RDONLY)
    os.remove("0.txt", dir_fd=folder)
    os.close(folder)


def write_from_inside():
    os.chdir("data/train")
    write("new.txt")
    write("../../out.txt")


def hard_link():
    os.link("data/train/0.txt", "second.txt")
    write("second.txt")


class TestFolderLinks:
    @pytest.mark.parametrize(
        ("task", "expected"),
        [
            (lambda: write("data/cache.txt"), [("write", "data/cache.txt")]),
            (lambda: write("data/train/0.txt"), [("write", "data/train/0.txt")]),
            (lambda: write("data/../out.txt"), [("write", "out.txt")]),
            (lambda: torch.save(1, "data/train/a.pt"), [("write", "data/train/a.pt")]),
            (lambda: os.makedirs("data/new/deep"), [("mkdir", "data/new"), ("mkdir", "data/new/deep")]),
            (rename_in_data, [("rename", "data/val/zero.txt")]),
            (lambda: os.remove("data/train/0.txt"), [("remove", "data/train/0.txt")]),
            (lambda: os.chmod("data/train", 0o700), []),
            (lambda: os.chmod("data", 0o700), []),
            (hard_link, [("write", "second.txt")]),
            (write_from_inside, [("write", "data/train/new.txt"), ("write", "out.txt")]),
        ],
    )
    def test_the_users_folder_stays_as_it_is(self, place, run, data, task, expected):
        before = tree(place / "original")
        events = run(task)
        assert tree(place / "original") == before
        assert files_of(events) == expected
        assert not data.is_symlink() and os.listdir(place / "project" / "data") != []

    def test_a_removed_tree(self, place, run, data):
        before = tree(place / "original")
        run(lambda: shutil.rmtree("data/train"))
        assert tree(place / "original") == before
        assert os.listdir(data) == ["val"] and len(os.listdir(data / "val")) == 20

    def test_a_copied_folder_lists_the_same_files(self, place, run, data):
        def task():
            before = sorted(Path("data").rglob("*.txt"))
            write("data/train/cache")
            assert sorted(Path("data").rglob("*.txt")) == before
            assert len(before) == 40
            assert Path("data/val/3.txt").read_text() == "val 3"

        run(task)

    @pytest.mark.parametrize(
        "task", [lambda: list(Path("data").rglob("*")), lambda: os.makedirs("data/train", exist_ok=True)]
    )
    def test_an_operation_that_changes_nothing_keeps_the_link(self, run, data, task):
        assert run(task) == []
        assert data.is_symlink()

    def test_bytecode_does_not_copy_a_folder(self, run, data):
        def task():
            os.mkdir("data/__pycache__")
            write("data/__pycache__/module.cpython-311.pyc")

        assert run(task) == []
        assert data.is_symlink()

    def test_another_rank_can_read_all_the_time(self, place, data):
        links = [place / "project" / f"data{number}" for number in range(30)]
        for link in links:
            link.symlink_to(place / "original" / "data")

        def read():
            while not Path("done").exists():
                for link in links:
                    assert (link / "val" / "3.txt").read_text() == "val 3"

        reader = Child(read, place)
        copy = PrivateCopy(str(place / "project"))
        for link in links:
            copy.own(str(link))
        (place / "project" / "done").touch()
        reader.events()
        assert not any(link.is_symlink() for link in links)

    def test_a_folder_beyond_the_limit_is_linked_again(self, place, data, monkeypatch):
        monkeypatch.setattr(private_copy, "MOST_LINKS", 2)
        copy = PrivateCopy(str(place / "project"))
        copy.own(copy.locate(str(data)))
        assert (data / "train").is_symlink() != (data / "val").is_symlink()
        assert (data / "val" / "3.txt").read_text() == "val 3"
        copy.own(copy.locate(str(data / "val")))
        assert not (data / "val").is_symlink()

    def test_without_an_atomic_exchange(self, place, data, monkeypatch):
        monkeypatch.setattr(private_copy.ctypes, "CDLL", lambda name: object())
        copy = PrivateCopy(str(place / "project"))
        copy.own(str(data))
        assert not data.is_symlink() and (data / "val" / "3.txt").read_text() == "val 3"
        assert os.listdir(place / "project") == ["data"]

    def test_without_room_the_event_names_the_file_of_the_user(self, place, run, data, monkeypatch):
        def no_room(*args):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(private_copy, "_mirror", no_room)
        events = run(lambda: write("data/cache.txt"))
        assert files_of(events) == [("write", str(place / "original" / "data" / "cache.txt"))]
        assert os.listdir(place / "project") == ["data"]


SCRIPT = """
import os, sys, numpy, torch
torch.save({"weight": torch.zeros(2)}, "model.pt")
with open("log.txt", "a") as file:
    file.write("appended")
array = numpy.lib.format.open_memmap("array.npy", mode="r+")
array[:] = 0
array.flush()
os.remove("runs/old.pt")
print(torch.load("model.pt"))
"""
DRIVER = """
import runpy, sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from retrofit.verify.trace.filesystem.files import install_files
from retrofit.verify.trace.recorder import Recorder
recorder = Recorder(Path("../rank0.jsonl"))
install_files(recorder.record, ".", [".."])
runpy.run_path("train.py", run_name="__main__")
"""


def test_a_traced_script_changes_nothing_of_the_users_through_its_copy(tmp_path):
    from retrofit.verify.processes.project_copy import copy_project

    project = tmp_path / "mine"
    (project / "runs").mkdir(parents=True)
    (project / "train.py").write_text(SCRIPT)
    torch.save(torch.ones(300_000), project / "model.pt")
    np.save(project / "array.npy", np.ones(300_000))
    (project / "log.txt").write_text("line\n" * 300_000)
    (project / "runs" / "old.pt").write_bytes(OLD * 1000)
    before = tree(project)
    report = copy_project(project, tmp_path / "run" / "project")
    assert report.num_linked == 4
    command = [sys.executable, "-c", DRIVER, str(ROOT)]
    done = subprocess.run(command, cwd=tmp_path / "run" / "project", capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert tree(project) == before
    copy = tmp_path / "run" / "project"
    assert torch.equal(torch.load(copy / "model.pt")["weight"], torch.zeros(2))
    assert (copy / "log.txt").read_text() == "line\n" * 300_000 + "appended"
    assert np.load(copy / "array.npy").sum() == 0
    assert not (copy / "runs" / "old.pt").exists()
