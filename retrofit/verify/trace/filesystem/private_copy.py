"""Keep a run's copy of a project private: what is written through its links stays in the copy.

A copy holds links to the user's large files and folders. Before one of them is changed, the link is replaced: that of
a file by a copy of the file, that of a folder by a folder of links to what is in it.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import shutil
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress

MOST_LINKS = 100_000  # some seconds' work; folders beyond are linked as a whole again
AT_FDCWD, RENAME_EXCHANGE = -100, 2  # <linux/fcntl.h>, <linux/fs.h>


class PrivateCopy:
    """A folder whose links may lead out of it, but through which nothing outside is changed."""

    def __init__(self, root: str) -> None:
        self.root = os.path.realpath(root)

    def contains(self, path: str) -> bool:
        return path == self.root or path.startswith(self.root + os.sep)

    def locate(self, path: str) -> str:
        """Return where `path` really is, its last part not followed, and make the copy's folders on the way its own.

        As the kernel walks, so that `..` after a link is the parent of the place it leads to.
        """
        parts = [part for part in os.path.join(os.getcwd(), path).split(os.sep) if part not in ("", ".")]
        place = os.sep
        for position, part in enumerate(parts, 1):
            if part == "..":
                place = os.path.dirname(place)
                continue
            place = os.path.join(place, part)
            if position < len(parts) and os.path.islink(place):
                with suppress(OSError):  # no room: then the path that is returned leads out of the copy
                    self.own(place)
                place = os.path.realpath(place)
        return place

    def own(self, place: str, *, keep: bool = True) -> None:
        """If `place` (of `locate`) is a link out of the copy, replace it by a file or folder of the copy's own.

        Without `keep` the file is empty, for a caller that is about to truncate it. It has the permissions of the
        original, so that opening it fails where it would have failed.
        """
        if not self._leads_out(place):
            return
        with self._lock():
            if not self._leads_out(place):  # another process was faster
                return
            original = os.path.realpath(place)
            if os.path.isdir(original):
                _own_folder(place, original)
            elif os.path.exists(original):
                _own_file(place, original, keep)
            else:
                os.unlink(place)

    def _leads_out(self, place: str) -> bool:
        return self.contains(place) and os.path.islink(place) and not self.contains(os.path.realpath(place))

    @contextmanager
    def _lock(self) -> Iterator[None]:
        """Keep the other ranks, which work in the same copy, from replacing a link at the same time."""
        descriptor = os.open(self.root, os.O_RDONLY)
        try:
            with suppress(OSError):  # a disk that knows no locks
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


def _own_file(link: str, original: str, keep: bool) -> None:
    temporary = _temporary(link)
    try:
        if keep:
            shutil.copyfile(original, temporary)
        else:
            os.close(os.open(temporary, os.O_CREAT | os.O_WRONLY))
        shutil.copystat(original, temporary)
        os.replace(temporary, link)
    except OSError:
        with suppress(OSError):
            os.unlink(temporary)
        raise


def _own_folder(link: str, original: str) -> None:
    temporary = _temporary(link)
    try:
        os.mkdir(temporary)
        _mirror(original, temporary)
        _replace_link(link, temporary)
    except OSError:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def _temporary(link: str) -> str:
    return f"{link}.{os.getpid()}.{threading.get_ident()}.tmp"


def _mirror(source: str, target: str) -> None:
    """Fill the folder `target` with links to the files in `source`, in folders of its own.

    Links to folders would do as well, but for scripts that list their files with rglob or os.walk, which pass them by.
    """
    num_links = 0
    folders = deque([(source, target)])
    while folders:
        source, target = folders.popleft()
        with os.scandir(source) as entries:
            for entry in entries:
                link = os.path.join(target, entry.name)
                num_links += 1
                is_folder = entry.is_dir(follow_symlinks=False) and os.access(entry.path, os.R_OK | os.X_OK)
                if is_folder and num_links < MOST_LINKS:
                    os.mkdir(link)
                    folders.append((entry.path, link))
                else:
                    os.symlink(entry.path, link)


def _replace_link(link: str, folder: str) -> None:
    """Put `folder` in the place of `link`, in one step where the system can: other ranks may be reading in it."""
    names = os.fsencode(folder), os.fsencode(link)
    exchange = getattr(ctypes.CDLL(None), "renameat2", None)
    if exchange is not None and exchange(AT_FDCWD, names[0], AT_FDCWD, names[1], RENAME_EXCHANGE) == 0:
        os.unlink(folder)  # which is the link now
    else:
        os.unlink(link)
        os.rename(folder, link)
