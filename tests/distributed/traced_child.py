"""Tasks in processes of their own with the file trace on, and what they recorded."""

from __future__ import annotations

import os
import pickle
import tempfile
import traceback
from pathlib import Path

from retrofit.verify.trace.events import FileChange
from retrofit.verify.trace.filesystem import own_work
from retrofit.verify.trace.filesystem.files import install_files

OLD = b"the user's own content " * 100


class Child:
    """Runs `task()` with the trace installed in a forked process: an audit hook cannot be taken back."""

    def __init__(self, task, place, ignore=()):
        self.answer = Path(tempfile.mkstemp(dir=place / "answers")[1])
        self.pid = os.fork()
        if self.pid == 0:
            self.be_it(task, place / "project", ignore)

    def be_it(self, task, project, ignore):
        try:
            os.chdir(project)
            events = []
            install_files(events.append, str(project), ignore)
            task()
            answer = (events, None)
        except BaseException:
            answer = ([], traceback.format_exc())
        with own_work.own_work():
            self.answer.write_bytes(pickle.dumps(answer))
        os._exit(0)

    def events(self):
        os.waitpid(self.pid, 0)
        events, error = pickle.loads(self.answer.read_bytes())
        assert error is None, error
        return events


def make_place(tmp_path):
    """Return a folder with a `project` and the user's `original`s."""
    for name in ("project", "original", "answers"):
        (tmp_path / name).mkdir()
    return tmp_path


def files_of(events):
    """Return [(op, path), ...]; one of two alike in a row, since some ways to open a file raise two events."""
    found = [(event.op, event.path) for event in kinds_of(events, FileChange)]
    return [event for event, before in zip(found, [None, *found]) if event != before]


def kinds_of(events, kind):
    return [event for event in events if isinstance(event, kind)]


def write(path, text="new"):
    with open(path, "w") as file:
        file.write(text)


def tree(folder):
    """Return everything that could be changed in `folder`."""
    found = {}
    for path in [folder, *sorted(folder.rglob("*"))]:
        facts = path.lstat()
        content = path.read_bytes() if path.is_file() else None
        found[str(path)] = (facts.st_mode, facts.st_ino, content, facts.st_mtime_ns)
    return found


def opened(path, mode):
    """Open `path`, and write to it what can be seen."""
    with open(path, mode) as file:
        file.write(b"new" if "b" in mode else "new")
