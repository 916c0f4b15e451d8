"""Take conversions back: a finished one when it is asked for, one that was interrupted before anything else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Optional

from retrofit.analysis.files.repository import may_hold

from .confined import Confined, State, WriteError, digest
from .journal import (
    COMPLETE,
    FOLDER,
    ORIGINALS,
    UNDOING,
    Entry,
    Journal,
    keep_original,
    original,
    read_journals,
    save,
    tidy,
)

# (path, content before a conversion, journal of the conversion, what it has made of another content if it is to make
# the same choices) -> content after it; None where that cannot be known.
Redo = Callable[[str, Optional[bytes], Journal, Optional[bytes]], Optional[bytes]]


@dataclass
class Undone:
    """What `undo` did. `kept` are files that the conversions of `needed_by` need."""

    restored: list[Path] = field(default_factory=list)
    kept: list[Path] = field(default_factory=list)
    needed_by: list[str] = field(default_factory=list)


def folders_with_journals(script: Path) -> list[Path]:
    """Return the folders around a script that have conversions, the nearest first; its own is always one of them."""
    own = script.parent
    above = (folder for folder in own.parents if may_hold(folder, own))
    return [own, *(folder for folder in above if (folder / FOLDER).is_dir())]


def root_of(script: Path, folders: list[Path]) -> Path:
    """Return the first of the folders in which `script` was converted, else the first one."""
    for root in folders:
        if (root / FOLDER).is_dir():
            with Confined(root) as inside:
                if any(journal.script == inside.relative(script) for journal in read_journals(inside)):
                    return root
    return folders[0]


def find_unfinished(root: Path) -> str | None:
    """Return the script of a conversion below `root` that was interrupted, or whose undoing was."""
    with Confined(root) as inside:
        return next((journal.script for journal in read_journals(inside) if journal.state != COMPLETE), None)


def recover(root: Path, redo: Redo | None = None) -> list[str]:
    """Take back what was interrupted, and return the scripts whose conversions that were."""
    with Confined(root) as inside:
        inside.lock()
        try:
            return [journal.script for journal in _recover(inside, redo)]
        finally:
            tidy(inside, read_journals(inside))


def undo(root: Path, script: Path | None, redo: Redo | None = None) -> Undone:
    """Restore what the conversion of `script`, or the only one there is, has changed below `root`.

    Other conversions stay complete. Raises WriteError, and changes nothing, when there is no such conversion, or when
    a file has been changed since.
    """
    with Confined(root) as inside:
        inside.lock()
        journals = read_journals(inside)
        try:
            if not journals:
                raise WriteError(f"no conversion to undo in {inside.root}; use your version control")
            chosen = _choose(inside, journals, inside.relative(script) if script else None)
            was_unfinished = chosen.state != COMPLETE
            recovered = _recover(inside, redo)
            if was_unfinished:
                paths = [inside.root / entry.path for journal in recovered for entry in journal.entries]
                return Undone(restored=paths)
            journals = read_journals(inside)
            return take_back(inside, chosen, [other for other in journals if other.number > chosen.number], redo)
        finally:
            tidy(inside, read_journals(inside))


def _choose(inside: Confined, journals: list[Journal], script: str | None) -> Journal:
    scripts = sorted({journal.script for journal in journals})
    found = [journal for journal in journals if script in (None, journal.script)]
    if not found:
        raise WriteError(f"no conversion of {script} to undo in {inside.root}, only of {', '.join(scripts)}")
    if len({journal.script for journal in found}) > 1:
        raise WriteError(f"several conversions to undo in {inside.root}; name one of: {', '.join(scripts)}")
    return found[-1]


def _recover(inside: Confined, redo: Redo | None) -> list[Journal]:
    journals = read_journals(inside)
    unfinished = [journal for journal in journals if journal.state != COMPLETE]
    for journal in unfinished:
        later = [o for o in journals if o.number > journal.number and o.state == COMPLETE]
        take_back(inside, journal, later, redo)
    return unfinished


def take_back(inside: Confined, journal: Journal, later: list[Journal], redo: Redo | None = None) -> Undone:
    """Restore what one conversion changed, except for what the `later` ones need.

    Nothing is changed before all that is needed has been found. After that every step can be repeated: when the
    process is killed, the next call does the rest.
    """
    decision = _Decision(inside, journal, later, redo)
    if journal.state == COMPLETE:
        journal.state = UNDOING
        save(inside, journal)
    for content in decision.originals:
        keep_original(inside, content)
    for other in later:
        other.folders += [f for f in journal.folders if f not in other.folders and _is_needed(f, other)]
        save(inside, other)
    for path, content_and_mode in decision.targets.items():
        _restore(inside, path, content_and_mode)
    for folder in sorted(journal.folders, reverse=True):  # the inner ones first
        if not any(_is_needed(folder, other) for other in later):
            inside.remove_folder(folder)
    for folder in {path.rpartition("/")[0] for path in decision.targets}:
        if not folder or inside.has_folder(folder):
            inside.sync(folder)
    inside.remove(journal.path)
    inside.sync(FOLDER)
    return decision.undone


def _is_needed(folder: str, other: Journal) -> bool:
    return any(entry.path.startswith(f"{folder}/") for entry in other.entries)


class _Decision:
    """What is to become of every file of a conversion that is taken back. Raises WriteError, as `undo` does."""

    def __init__(self, inside: Confined, journal: Journal, later: list[Journal], redo: Redo | None) -> None:
        self.undone = Undone()
        self.targets: dict[str, tuple[bytes, int] | None] = {}  # content and permissions, None: the file goes
        self.originals: list[bytes] = []  # that the later journals now need
        self._inside = inside
        self._journal = journal
        self._redo = redo
        self._changed: list[str] = []
        for entry in journal.entries:
            following = [(o, found) for o in later if (found := o.entry(entry.path)) is not None]
            if following:
                self._hand_over(entry, following)
            elif entry.is_changed:
                self._restore(entry)
        if self._changed:
            names = ", ".join(self._changed)
            raise WriteError(f"changed since the conversion: {names}; undo by hand, the originals are in {ORIGINALS}")

    def _restore(self, entry: Entry) -> None:
        now = self._inside.state(entry.path)
        if (now and now.sha256) == (entry.before and entry.before.sha256):
            self._note(entry)  # by a call that was killed
        elif now is None or now.sha256 != entry.after.sha256:
            is_new = entry.before is None
            self._changed.append(entry.path if is_new else f"{entry.path} (original: {entry.before.sha256})")  # type: ignore[union-attr]
        else:
            self._note(entry)
            kept = (original(self._inside, entry.before.sha256), entry.before.mode) if entry.before else None
            self.targets[entry.path] = kept

    def _note(self, entry: Entry) -> None:
        self.undone.restored.append(self._inside.root / entry.path)

    def _hand_over(self, entry: Entry, following: list[tuple[Journal, Entry]]) -> None:
        """Leave a file to the later conversions that need it: it is then theirs to restore."""
        first, found = following[0]
        path = self._inside.root / entry.path
        if all(other.after.sha256 == entry.after.sha256 for _, other in following):
            found.before = entry.before
            self.undone.kept.append(path)
            self.undone.needed_by += [o.script for o, _ in following if o.script not in self.undone.needed_by]
        elif not self._redo_all(entry, following):
            raise WriteError(
                f"{path} was changed by the conversion of {first.script} too; undo that one first: "
                f"`retrofit convert {self._inside.root / first.script} --undo`"
            )

    def _redo_all(self, entry: Entry, following: list[tuple[Journal, Entry]]) -> bool:
        """Apply the later conversions of a file to what it was before this one, if that is known how."""
        new = original(self._inside, entry.before.sha256) if entry.before else None
        mode = entry.before.mode if entry.before else entry.after.mode
        old = self._redo(entry.path, new, self._journal, None) if self._redo else None
        if self._redo is None or old is None or digest(old) != entry.after.sha256:
            return False
        states = []
        for journal, _ in following:
            before = State(digest(new), mode) if new is not None else None
            self.originals += [new] if new is not None else []
            old = self._redo(entry.path, old, journal, None)
            new = self._redo(entry.path, new, journal, old)
            if old is None or new is None:
                return False
            states.append((before, State(digest(new), mode)))
        now = self._inside.state(entry.path)
        if old is None or new is None or now is None or now.sha256 not in (digest(old), digest(new)):
            return False
        for (_, later), state in zip(following, states):
            later.before, later.after = state
        self.targets[entry.path] = (new, mode)
        self._note(entry)
        return True


def _restore(inside: Confined, path: str, content_and_mode: tuple[bytes, int] | None) -> None:
    if content_and_mode is None:
        inside.remove(path)
        _remove_compiled(inside, path)
        return
    temporary = f"{FOLDER}/new-original"
    inside.remove(temporary)
    inside.create(temporary, *content_and_mode, like=path)
    inside.rename(temporary, path)


def _remove_compiled(inside: Confined, path: str) -> None:
    """Remove what Python has made of a module that is gone, or its folder would stay."""
    folder, _, name = path.rpartition("/")
    cache = f"{folder}/__pycache__" if folder else "__pycache__"
    stem = name.removesuffix(".py")
    if stem == name or not inside.has_folder(cache):
        return
    for compiled in inside.names(cache):
        if compiled.startswith(f"{stem}.") and compiled.endswith(".pyc"):
            inside.remove(f"{cache}/{compiled}")
    inside.remove_folder(cache)
