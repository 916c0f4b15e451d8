"""What the trace sees of a script's files."""

from __future__ import annotations

import io
import os
import shutil
import sqlite3
import sys
import tempfile
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from traced_child import OLD, Child, files_of, make_place, opened, write

from retrofit.verify.trace.events import FileChange, FileLoad, FileSave
from retrofit.verify.trace.filesystem.files import install_files
from retrofit.verify.trace.filesystem.snapshot import snapshot


@pytest.fixture
def place(tmp_path):
    return make_place(tmp_path)


@pytest.fixture
def run(place):
    return lambda task, ignore=(): Child(task, place, ignore).events()


@pytest.mark.parametrize(
    ("task", "expected"),
    [
        (lambda: write("a.txt"), [("write", "a.txt")]),
        (lambda: open("kept.txt", "a").close(), [("write", "kept.txt")]),
        (lambda: open("kept.txt", "r+b").close(), [("write", "kept.txt")]),
        (lambda: open("new.txt", "x").close(), [("write", "new.txt")]),
        (lambda: os.close(os.open("a.bin", os.O_WRONLY | os.O_CREAT)), [("write", "a.bin")]),
        (lambda: os.close(os.open("lock", os.O_RDONLY | os.O_CREAT)), [("write", "lock")]),
        (lambda: Path("a.txt").write_text("x"), [("write", "a.txt")]),
        (lambda: Path("new.txt").touch(), [("write", "new.txt")]),
        (lambda: write(b"bytes.txt"), [("write", "bytes.txt")]),
        (lambda: write(os.path.abspath("sub/../a.txt")), [("write", "a.txt")]),
        (lambda: np.save("a.npy", np.zeros(3)), [("write", "a.npy")]),
        (lambda: os.truncate("kept.txt", 1), [("write", "kept.txt")]),
        (lambda: sqlite3.connect("base.db").close(), [("write", "base.db")]),
        (lambda: shutil.copyfile("kept.txt", "copy.txt"), [("write", "copy.txt")]),
        (lambda: os.symlink("kept.txt", "link"), [("write", "link")]),
        (lambda: os.link("kept.txt", "link"), [("write", "link")]),
        (lambda: os.makedirs("one/two"), [("mkdir", "one"), ("mkdir", "one/two")]),
        (lambda: Path("one/two").mkdir(parents=True), [("mkdir", "one"), ("mkdir", "one/two")]),
        (lambda: os.replace("kept.txt", "sub/b.txt"), [("rename", "sub/b.txt")]),
        (lambda: Path("kept.txt").rename("b.txt"), [("rename", "b.txt")]),
        (lambda: os.remove("kept.txt"), [("remove", "kept.txt")]),
        (lambda: Path("kept.txt").unlink(), [("remove", "kept.txt")]),
        (lambda: os.rmdir("sub"), [("remove", "sub")]),
    ],
)
def test_each_way_to_change_a_file_is_recorded(place, run, task, expected):
    (place / "project" / "kept.txt").write_text("kept")
    (place / "project" / "sub").mkdir()
    assert files_of(run(task)) == expected


def test_the_files_that_rmtree_removes_are_recorded_with_their_folders(place, run):
    (place / "project" / "old" / "deep").mkdir(parents=True)
    (place / "project" / "old" / "deep" / "a.txt").write_text("a")
    expected = [("remove", "old/deep/a.txt"), ("remove", "old/deep"), ("remove", "old")]
    assert files_of(run(lambda: shutil.rmtree("old"))) == expected


def test_operations_that_change_nothing_are_not_recorded(place, run):
    (place / "project" / "kept.txt").write_text("kept")

    def task():
        open("kept.txt").close()
        Path("kept.txt").read_bytes()
        os.makedirs(".", exist_ok=True)
        os.makedirs(place / "project", exist_ok=True)
        for error, call in [
            (FileNotFoundError, lambda: opened("missing/a.txt", "w")),
            (FileNotFoundError, lambda: os.remove("missing.txt")),
            (FileNotFoundError, lambda: os.rename("missing.txt", "a.txt")),
            (FileExistsError, lambda: opened("kept.txt", "x")),
            (IsADirectoryError, lambda: opened(".", "w")),
        ]:
            with pytest.raises(error):
                call()

    assert run(task) == []


def test_paths_outside_the_project_are_absolute(place, run):
    (place / "project" / "out").symlink_to(place / "original")
    outside = place / "original" / "a.txt"
    assert files_of(run(lambda: write(outside))) == [("write", str(outside))]


def test_paths_are_those_of_the_file_not_of_the_link_that_leads_to_it(place, run):
    (place / "project" / "runs").mkdir()
    (place / "project" / "latest").symlink_to("runs")
    (place / "alias").symlink_to(place / "project")
    assert files_of(run(lambda: write("latest/a.txt"))) == [("write", "runs/a.txt")]
    assert files_of(run(lambda: write(place / "alias" / "runs" / "a.txt"))) == [("write", "runs/a.txt")]


def test_the_working_directory_counts(place, run):
    (place / "project" / "sub").mkdir()

    def task():
        os.chdir("sub")
        write("a.txt")

    assert files_of(run(task)) == [("write", "sub/a.txt")]


def test_devices_descriptors_caches_and_the_traces_own_folder_are_not_recorded(place, run, monkeypatch):
    def task():
        write(os.devnull)
        reader, writer = os.pipe()
        os.close(reader)
        open(writer, "wb").close()
        os.makedirs("package/__pycache__")
        write("package/__pycache__/module.cpython-311.pyc.123")
        os.makedirs("torchinductor_me/ab")
        write("torchinductor_me/ab/kernel.py")
        tempfile.gettempdir()
        with tempfile.TemporaryFile(dir=place / "ignored") as file:
            file.write(b"x")
        write(place / "ignored" / "rank0.jsonl")

    (place / "ignored").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", None)
    assert files_of(run(task, ignore=[str(place / "ignored")])) == [("mkdir", "package")]


def test_a_project_inside_an_ignored_folder_is_recorded(place, run):
    def task():
        write("a.txt")
        write("../trace.jsonl")

    assert files_of(run(task, ignore=[str(place)])) == [("write", "a.txt")]


def test_site_packages_are_not_recorded(place, run):
    name = "retrofit_test_of_the_trace.txt"
    packages = Path(torch.__file__).parents[1]
    if not os.access(packages, os.W_OK):
        packages = Path(sys.prefix)

    def task():
        try:
            write(packages / name)
        finally:
            os.remove(packages / name)

    assert run(task) == []


def test_a_snapshot_is_not_recorded_as_a_write_of_the_script(place, run):
    (place / "project" / "a.txt").write_text("a")
    assert run(lambda: snapshot(place / "project", place / "snapshot")) == []
    assert (place / "snapshot" / "a.txt").read_text() == "a"


def test_a_trace_that_cannot_record_does_not_disturb_the_script(place):
    def task():
        def record(event):
            raise OSError("disk full")

        install_files(record, str(place / "project"))
        write("a.txt")
        torch.save(1, "a.pt")
        assert torch.load("a.pt") == 1

    Child(task, place).events()
    assert (place / "project" / "a.txt").read_text() == "new"


def test_audit_events_of_other_tools_with_the_same_name_do_no_harm(run):
    def task():
        sys.audit("open")
        sys.audit("open", object(), object(), object())
        sys.audit("os.mkdir", 3, None, "x")
        sys.audit("os.rename")

    assert run(task) == []


def test_recording_into_a_file_does_not_record_itself(place):
    def task():
        calls = []

        def record(event):
            calls.append(event.path)
            write(place / "log.txt")

        install_files(record, str(place / "project"))
        write("a.txt")
        assert calls == ["a.txt"], calls

    Child(task, place).events()


def test_threads_are_seen(place, run):
    def task():
        thread = threading.Thread(target=write, args=["a.txt"])
        thread.start()
        thread.join()

    assert files_of(run(task)) == [("write", "a.txt")]


def save_by_way_of_memory(weights, content):
    """Do as Lightning Fabric does: torch.save to memory, the bytes to a file elsewhere, which is then moved."""
    buffer = io.BytesIO()
    torch.save({"w": torch.zeros(weights)}, buffer)
    with tempfile.NamedTemporaryFile(delete=False) as file:
        file.write(content or buffer.getvalue())
    shutil.move(file.name, "last.ckpt")


@pytest.mark.parametrize(("content", "expected"), [(b"", [{"w": "float32[3]"}]), (b"others", [])])
def test_what_torch_has_saved_to_memory_is_a_checkpoint_where_it_is_moved_to(run, content, expected):
    saves = [event for event in run(lambda: save_by_way_of_memory(3, content)) if isinstance(event, FileSave)]
    assert [event.keys for event in saves] == expected
    assert all(event.path == "last.ckpt" for event in saves)


def test_recording_can_be_switched_off(place):
    def task():
        calls = []
        files = install_files(calls.append, str(place / "project"))
        files.active = False
        write("a.txt")
        torch.save(1, "a.pt")
        torch.load("a.pt")
        assert calls == []

    events = Child(task, place).events()
    assert [type(event) for event in events] == [FileChange, FileChange, FileSave, FileLoad]  # of the other one


COMPILED = {
    "cv2": "def imwrite(filename, img, params=None):\n    real(filename, img)\n",
    "safetensors/torch": "def save_file(tensors, filename, metadata=None):\n    real(filename, tensors)\n",
    "h5py/_hl/files": "class File:\n    def __init__(self, name, mode='r', driver=None):\n"
    "        if mode != 'r': real(name, b'h5')\n",
}
# Opens without an audit event, as compiled code does.
REAL = """
import ctypes
libc = ctypes.CDLL(None)
def real(name, content):
    descriptor = libc.open(str(name).encode(), 0o1001, 0o644)
    libc.write(descriptor, content, len(content))
    libc.close(descriptor)
"""


def test_compiled_writers_are_seen_in_modules_that_are_imported_later(place, run, monkeypatch):
    for name, code in COMPILED.items():
        path = place / "packages" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(REAL + code)
        for package in path.relative_to(place / "packages").parents[:-1]:  # before an installed one of that name
            (place / "packages" / package / "__init__.py").touch()
    (place / "original" / "a.png").write_bytes(OLD)
    (place / "project" / "a.png").symlink_to(place / "original" / "a.png")
    (place / "project" / "read.h5").symlink_to(place / "original" / "a.png")
    monkeypatch.syspath_prepend(str(place / "packages"))
    for name in [name for name in sys.modules if name.split(".")[0] in ("cv2", "safetensors", "h5py")]:
        monkeypatch.delitem(sys.modules, name)

    def task():
        import cv2
        from h5py._hl.files import File
        from safetensors.torch import save_file

        cv2.imwrite("a.png", b"png")
        save_file(b"tensors", filename="a.safetensors")
        File("read.h5")
        File("a.h5", mode="w")

    events = run(task)
    assert files_of(events) == [("write", "a.png"), ("write", "a.safetensors"), ("write", "a.h5")]
    assert (place / "original" / "a.png").read_bytes() == OLD
    assert (place / "project" / "a.png").read_bytes()[:3] == b"png"
    assert (place / "project" / "read.h5").is_symlink()
