"""Files of the project that a traced process reads, and what it waits for."""

from __future__ import annotations

import fcntl
import os
import time

import pytest
import torch
from traced_child import Child, kinds_of, make_place, write

from retrofit.verify.trace.events import FileLock, FileRead
from retrofit.verify.trace.filesystem.files import install_files
from retrofit.verify.trace.filesystem.reads import install_reads


@pytest.fixture
def traced(tmp_path):
    place = make_place(tmp_path)
    write(place / "project" / "old.txt")
    os.utime(place / "project" / "old.txt", (1, 1))
    write(place / "original" / "outside.txt")

    def run(task):
        def installed():
            events = []
            files = install_files(events.append, os.getcwd())
            install_reads(events.append, files, os.getcwd())
            task()
            assert not kinds_of(events, FileRead) or kinds_of(events, FileRead)[0].where is None  # not of the project
            write("found.txt", repr([(e.path, e.waited) for e in kinds_of(events, FileRead)]))
            write("locked.txt", repr([(e.path, e.is_empty) for e in kinds_of(events, FileLock)]))

        Child(installed, place).events()
        return [eval((place / "project" / name).read_text()) for name in ("found.txt", "locked.txt")]

    return run


def read(path):
    with open(path) as file:
        file.read()


def test_what_was_written_lately_in_the_project_is_recorded(traced):
    def task():
        write("new.txt")
        torch.save([1], "new.pt")
        for path in ("old.txt", "../original/outside.txt", "new.txt", os.path.abspath("new.txt")):
            read(path)
        torch.load("new.pt")

    assert traced(task)[0] == [("new.txt", False), ("new.txt", False), ("new.pt", False)]


def test_a_process_that_sleeps_or_locks_a_file_may_wait(traced):
    def sleeps():
        write("new.txt")
        time.sleep(0.001)
        read("new.txt")

    def locks():
        with open("lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            write("new.txt")
            read("new.txt")

    assert traced(sleeps)[0] == [("new.txt", True)]
    assert traced(locks) == [[("new.txt", True)], [("lock", True)]]
