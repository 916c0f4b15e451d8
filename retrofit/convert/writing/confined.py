"""Operations on the files below one folder that follow no link and leave the folder by no way."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

LARGEST = 64 * 2**20  # bytes of a file that is read
NEW_FILE, NEW_PROGRAM = 0o666, 0o777  # less what the umask takes away


class WriteError(ValueError):
    """The files could not be written; the message says what is in the way and what to do."""


@dataclass(frozen=True)
class State:
    """What a file holds, and its permissions."""

    sha256: str
    mode: int


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


class Confined:
    """The folder `root`, opened. Paths are relative to it, with "/" between their parts.

    Every folder on the way is opened by its name in the one above it, so a link on the way or at the end is an error,
    whatever happens in the folder meanwhile.
    """

    def __init__(self, root: Path) -> None:
        self.root = Path(os.path.realpath(root))
        self._fd = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def __enter__(self) -> Confined:
        return self

    def __exit__(self, *error: object) -> None:
        os.close(self._fd)

    def relative(self, path: Path) -> str:
        """Return the path of a file below the root as the other methods take it; raise WriteError for any other."""
        found = os.path.relpath(path, self.root)
        if found.split(os.sep)[0] == os.pardir:
            raise WriteError(
                f"{path} is outside {self.root}, where nothing is written; nothing was changed: "
                "name with --root a folder that holds both, or copy the file into the project"
            )
        return found.replace(os.sep, "/")

    def lock(self) -> None:
        """Keep other conversions of this folder out until it is closed, or this process ends."""
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise WriteError(f"another `retrofit convert` is writing in {self.root}; wait for its end") from None
        except OSError:  # a network disk without locks
            return

    def state(self, path: str) -> State | None:
        """Return what `read` finds, without the content."""
        found = self.read(path)
        return None if found is None else State(digest(found[0]), found[1])

    def read(self, path: str) -> tuple[bytes, int] | None:
        """Return a file's content and permissions, None where there is none.

        Raises WriteError for anything but a file of a moderate size.
        """
        try:
            with self._at(path) as (folder, name):
                flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
                self._refuse_odd(os.stat(name, dir_fd=folder, follow_symlinks=False), path)
                file = os.open(name, flags, dir_fd=folder)
        except FileNotFoundError:
            return None
        with os.fdopen(file, "rb") as opened:
            about = os.fstat(file)
            self._refuse_odd(about, path)
            data = opened.read(LARGEST + 1)
        if len(data) > LARGEST:
            raise WriteError(f"{self.root / path} is larger than {LARGEST // 2**20} MiB; nothing was changed")
        return data, stat.S_IMODE(about.st_mode)

    def create(self, path: str, data: bytes, mode: int, like: str | None = None) -> None:
        """Write a file that is not there yet, durably. With `like` it gets that file's owner and exactly `mode`."""
        with self._at(path) as (folder, name):
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            with os.fdopen(os.open(name, flags, mode, dir_fd=folder), "wb") as file:
                file.write(data)
                file.flush()
                if like is not None:
                    self._own(file.fileno(), like)
                    os.fchmod(file.fileno(), mode)
                os.fsync(file.fileno())

    def _own(self, file: int, like: str) -> None:
        with self._at(like) as (folder, name), suppress(PermissionError, FileNotFoundError):
            about = os.stat(name, dir_fd=folder, follow_symlinks=False)
            os.fchown(file, about.st_uid, about.st_gid)

    def is_writable(self, path: str) -> bool:
        with self._at(path) as (folder, name):
            return os.access(name, os.W_OK, dir_fd=folder)

    def rename(self, path: str, new_path: str) -> None:
        """Give a file a new name, in the place of a file that has it."""
        with self._at(path) as (folder, name), self._at(new_path) as (new_folder, new_name):
            with suppress(FileNotFoundError):
                self._refuse_odd(os.stat(new_name, dir_fd=new_folder, follow_symlinks=False), new_path)
            os.rename(name, new_name, src_dir_fd=folder, dst_dir_fd=new_folder)

    def remove(self, path: str) -> None:
        with suppress(FileNotFoundError), self._at(path) as (folder, name):
            os.unlink(name, dir_fd=folder)

    def make_folder(self, path: str) -> bool:
        """Make a folder if it is not there, and return whether it was made."""
        with self._at(path) as (folder, name):
            try:
                os.mkdir(name, dir_fd=folder)
            except FileExistsError:
                self._open(name, folder, path, closes=True)  # raises for what is not a folder
                return False
        return True

    def remove_folder(self, path: str) -> None:
        """Remove a folder if it is empty."""
        try:
            with self._at(path) as (folder, name):
                os.rmdir(name, dir_fd=folder)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST):
                raise

    def has_folder(self, path: str) -> bool:
        """Return whether there is a folder; raise WriteError for a link in its place, or on the way."""
        try:
            with self._at(f"{path}/x"):
                return True
        except FileNotFoundError:
            return False

    def names(self, path: str) -> list[str]:
        """Return the sorted names in a folder, none where there is no folder."""
        try:
            with self._at(f"{path}/x") as (folder, _):
                return sorted(os.listdir(folder))
        except FileNotFoundError:
            return []

    def sync(self, path: str) -> None:
        """Make durable what was renamed in a folder; "" is the root."""
        with self._at(f"{path}/x" if path else "x") as (folder, _):
            os.fsync(folder)

    @contextmanager
    def _at(self, path: str) -> Iterator[tuple[int, str]]:
        """Open the folder of a path, and give it with the last name."""
        *folders, name = path.split("/")
        opened = os.dup(self._fd)
        try:
            for number, part in enumerate(folders, 1):
                inner = self._open(part, opened, "/".join(folders[:number]))
                os.close(opened)
                opened = inner
            yield opened, name
        except OSError as error:
            if error.filename in (None, name):
                error.filename = str(self.root / path)
            raise
        finally:
            os.close(opened)

    def _open(self, name: str, folder: int, path: str, closes: bool = False) -> int:
        if name in ("", os.curdir, os.pardir):
            raise WriteError(f"{path!r} is not a path below {self.root}; nothing was changed")
        about = os.stat(name, dir_fd=folder, follow_symlinks=False)
        if not stat.S_ISDIR(about.st_mode):
            self._refuse_odd(about, path, wanted="folder")
        opened = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
        if closes:
            os.close(opened)
        return opened

    def _refuse_odd(self, about: os.stat_result, path: str, wanted: str = "file") -> None:
        if wanted == "file" and stat.S_ISREG(about.st_mode):
            return
        kind = "a link, and nothing is written through links" if stat.S_ISLNK(about.st_mode) else f"not a {wanted}"
        raise WriteError(f"{self.root / path} is {kind}; nothing was changed: move it out of the way")
