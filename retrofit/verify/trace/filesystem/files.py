"""Record changes to files, and keep them out of the user's own files.

Works on the events that the interpreter raises for an audit hook, before the operation takes place.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from retrofit.verify.trace.events import FileChange, FileLock, Record

from .compiled_writers import install_compiled_writers
from .own_work import is_own_work, own_work
from .paths import Places, is_cache
from .private_copy import PrivateCopy
from .saves import install_private_saves, install_saves

WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC


def install_files(record: Record, project: str, ignore: Sequence[str] = ()) -> FileTrace:
    """Trace files from now on: FileChange, FileSave and FileLoad, and copy-on-write in `project`.

    Paths in one of the folders `ignore` are not recorded, unless they lie in a `project` inside it. An audit hook
    stays as long as the process; the returned object's `active` switches it off.
    """
    files = FileTrace(record, project, ignore)
    install_saves(record, files)
    _watch(files)
    return files


def install_private_copy(project: str) -> None:
    """Keep what this process writes through the links of `project`, a copy, in the copy. Nothing is recorded."""
    files = FileTrace(lambda event: None, project, ())
    install_private_saves(files)
    _watch(files)


def _watch(files: FileTrace) -> None:
    tempfile.gettempdir()  # tries its folders out the first time
    install_compiled_writers(files.writes)
    sys.addaudithook(files.hook)


class FileTrace:
    """Sees every file that this process is about to write, make, rename or remove.

    Not seen: what other programs do that the script starts, and compiled code that `compiled_writers` does not name.
    """

    def __init__(self, record: Record, project: str, ignore: Sequence[str]) -> None:
        self.active = True
        self.on_rename: Callable[[str, str], None] = lambda source, target: None
        self.on_read: Callable[[Any], None] | None = None
        self.on_lock: Callable[[], None] = lambda: None
        self._record = record
        self._copy = PrivateCopy(project)
        self._places = Places(project, ignore)
        self._handlers: dict[str, Callable[..., None]] = {
            "open": self._open,
            "sqlite3.connect": self._connect,
            "os.truncate": lambda path, *rest: self._write(_absolute(path)),
            "os.mkdir": self._mkdir,
            "os.rename": self._rename,
            "os.remove": self._remove,
            "os.rmdir": self._remove,
            "os.link": self._link,
            "os.symlink": lambda text, path, dir_fd=-1: self._link(None, path, -1, dir_fd),
            "os.chmod": self._change,
            "os.chown": self._change,
            "os.utime": self._change,
            "os.chdir": self._change,
            "fcntl.flock": self._lock,
            "fcntl.lockf": self._lock,
            "shutil.rmtree": lambda path, dir_fd=None: self._change(path, -1 if dir_fd is None else dir_fd),
        }

    def hook(self, event: str, args: tuple[Any, ...]) -> None:
        """The audit hook. Never raises: the script would see an error that is not its own."""
        handler = self._handlers.get(event)
        if handler is not None:
            with suppress(Exception):
                if event != "open" or _is_writing(*args):
                    self._call(handler, *args)
                elif self.on_read is not None:
                    self._call(self.on_read, args[0])

    def writes(self, path: Any, *, keep: bool = True) -> None:
        """Do for a writer that raises no event what is done for the others. `keep`: old content may matter."""
        self._call(lambda: self._write(_absolute(path), keep=keep))

    def name(self, path: Any) -> str | None:
        """Return what `path` is called in the trace, None if it is not recorded."""
        return self._places.name(self.place(path))

    def place(self, path: Any) -> str:
        """Return the absolute path with its folders' links followed."""
        folder, name = os.path.split(_absolute(path))
        return os.path.join(os.path.realpath(folder), name)

    def is_in_project(self, path: Any) -> bool:
        """Return whether the content of `path` lies in the project's copy, and no link leads out of it."""
        return self._copy.contains(os.path.realpath(_absolute(path)))

    def holds(self, source: str) -> bool:
        """Return whether a source file is one of the project, a link to one of the user's too."""
        folder, name = os.path.split(os.path.abspath(source))
        return self._copy.contains(os.path.join(os.path.realpath(folder), name)) or self._copy.contains(source)

    def _call(self, handler: Callable[..., None], *args: Any) -> None:
        if self.active and not is_own_work():
            with own_work(), suppress(Exception):
                handler(*args)

    def _event(self, op: str, place: str, source: str | None = None) -> None:
        name = self._places.name(place)
        if name is not None:
            self._record(FileChange(op, name, source))

    def _locate(self, path: Any, dir_fd: int = -1) -> str:
        """Return the real place of what is about to be changed, in folders of the project's own."""
        path = _absolute(path, dir_fd)
        # A folder does not become the project's own for what Python keeps in it.
        return self.place(path) if is_cache(path) else self._copy.locate(path)

    def _open(self, path: Any, mode: str | None, flags: int) -> None:
        keep = not (flags & os.O_TRUNC or "w" in (mode or ""))
        self._write(_absolute(path), keep=keep, is_exclusive=bool(flags & os.O_EXCL))

    def _connect(self, database: Any) -> None:
        name = os.fsdecode(database)
        if name not in ("", ":memory:") and not name.startswith("file:"):
            self._write(_absolute(name))

    def _write(self, path: str, *, keep: bool = True, is_exclusive: bool = False) -> None:
        if os.path.isdir(path) or (is_exclusive and os.path.lexists(path)):
            return  # will fail; or a nameless temporary file in that folder
        place = self._locate(path)
        if not os.path.isdir(os.path.dirname(place)):
            return
        with suppress(OSError):  # no room: then the event tells what is written to
            self._copy.own(place, keep=keep)
        real = os.path.realpath(place)
        self._event("write", place if self._copy.contains(real) else real)

    def _mkdir(self, path: Any, mode: int = 0, dir_fd: int = -1) -> None:
        path = _absolute(path, dir_fd)
        if os.path.isdir(os.path.dirname(path)) and not os.path.lexists(path):
            self._event("mkdir", self._locate(path))

    def _rename(self, source: Any, target: Any, source_fd: int = -1, target_fd: int = -1) -> None:
        if not os.path.lexists(_absolute(source, source_fd)):
            return
        old, new = self._locate(source, source_fd), self._locate(target, target_fd)
        self._event("rename", new, source=self._places.name(old))
        self.on_rename(old, new)

    def _remove(self, path: Any, dir_fd: int = -1) -> None:
        if os.path.lexists(_absolute(path, dir_fd)):
            self._event("remove", self._locate(path, dir_fd))

    def _link(self, source: Any, path: Any, source_fd: int = -1, dir_fd: int = -1) -> None:
        if source is not None:
            self._locate(source, source_fd)  # or it becomes a second name of the user's file
        if os.path.lexists(_absolute(path, dir_fd)):
            return
        self._event("write", self._locate(path, dir_fd))

    def _lock(self, file: int, *rest: Any) -> None:
        self.on_lock()
        name = self._places.name(os.path.realpath(f"/proc/self/fd/{file}"))
        if name is not None:
            self._record(FileLock(name, os.fstat(file).st_size == 0))

    def _change(self, path: Any, *rest: Any) -> None:
        """Make a file or folder the project's own whose attributes or whose whole content are about to change."""
        if not isinstance(path, int) and os.path.lexists(_absolute(path, rest[-1] if rest else -1)):
            self._copy.own(self._locate(path, rest[-1] if rest else -1))


def _is_writing(path: Any, mode: str | None, flags: int) -> bool:
    """Return whether an open may change the file; most do not, and this is asked for each of them."""
    is_writing = flags & WRITING or (mode is not None and not {"w", "a", "x", "+"}.isdisjoint(mode))
    return bool(is_writing) and not isinstance(path, int)


def _absolute(path: Any, dir_fd: int = -1) -> str:
    """Return `path`, relative to the open folder `dir_fd` (-1: the working directory), as an absolute path."""
    folder = os.getcwd() if dir_fd == -1 else os.readlink(f"/proc/self/fd/{dir_fd}")
    return os.path.join(folder, os.fsdecode(path))
