"""A conversion that is killed or interrupted anywhere is undone or made complete by the next command."""

from __future__ import annotations

import errno
import os
import signal
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from io import StringIO
from pathlib import Path

import pytest
from convert.test_command import SCRIPT

from retrofit.analysis.files.start import Start
from retrofit.cli import main
from retrofit.convert.writing import confined
from retrofit.convert.writing.undo import find_unfinished, recover, undo
from retrofit.convert.writing.write import WriteError, write_all

CHANGING = ("open", "rename", "unlink", "mkdir", "rmdir", "fsync", "fchmod")
Tree = dict[str, tuple[int, bytes]]


class Ended(BaseException):
    """The process is gone."""


class Operations:
    """The module `os` that ends the process at its `last` changing operation, once that is done or before it."""

    def __init__(self, end: Callable[[], object], last: int, is_before: bool, is_final: bool) -> None:
        self.number = 0
        self._end, self._last, self._is_before, self._is_final = end, last, is_before, is_final

    def __getattr__(self, name: str) -> object:
        function = getattr(os, name)
        if name not in CHANGING:
            return function

        def counted(*arguments: object, **options: object) -> object:
            if name == "open" and not int(arguments[1]) & os.O_CREAT:  # type: ignore[call-overload]
                return function(*arguments, **options)
            self.number += 1
            is_due = self.number == self._last
            if (is_due and self._is_before) or (self._is_final and self.number > self._last):
                self._end()
            try:
                return function(*arguments, **options)
            finally:
                if is_due:
                    self._end()

        return counted


@contextmanager
def ending(
    last: int, end: Callable[[], object], is_before: bool = False, is_final: bool = True
) -> Iterator[Operations]:
    operations = Operations(end, last, is_before, is_final)
    confined.os = operations  # type: ignore[assignment]
    try:
        yield operations
    finally:
        confined.os = os


@pytest.fixture(autouse=True)
def _no_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for no disk: these processes only seem to be killed, or the machine lives on."""
    monkeypatch.setattr(os, "fsync", lambda file: None)


def kill() -> None:
    raise Ended


def interrupt() -> None:
    raise KeyboardInterrupt


def disk_full() -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def tree(folder: Path) -> Tree:
    """Return every file and folder with its permissions and its content."""
    return {
        str(path.relative_to(folder)): (stat.S_IMODE(path.stat().st_mode), path.read_bytes() if path.is_file() else b"")
        for path in folder.rglob("*")
    }


ORIGINAL = {"train.py": (b"train", 0o640), "parts/utils.py": (b"utils", 0o600), ".vscode/launch.json": (b"{}", 0o644),
            "same.md": (b"same", 0o644)}  # fmt: skip
NEW = {"parts/utils.py": b"new utils", "train.py": b"new train", ".vscode/launch.json": b"{1}", "same.md": b"same",
       "retrofit/distributed/loss.py": b"data", "retrofit/__init__.py": b"", "train_ddp.sh": b"#!/bin/sh"}  # fmt: skip


def make(folder: Path) -> Path:
    for name, (data, mode) in ORIGINAL.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        path.chmod(mode)
    return folder


def write(folder: Path) -> None:
    write_all(folder, {folder / name: data for name, data in NEW.items()}, Start(folder / "train.py", folder))


@pytest.fixture(scope="module")
def trees(tmp_path_factory: pytest.TempPathFactory) -> tuple[Tree, Tree]:
    """The project before a conversion and after it."""
    folder = make(tmp_path_factory.mktemp("complete"))
    before = tree(folder)
    write(folder)
    after = tree(folder)
    undo(folder, folder / "train.py")
    assert tree(folder) == before
    return before, after


def number_of_operations(action: Callable[[], object]) -> int:
    with ending(10**9, kill) as operations:
        action()
    return operations.number


Action = Callable[[Path], object]


def points(tmp_path: Path, prepare: Action, act: Action) -> Iterator[tuple[int, bool, Path]]:
    """Yield (operation, whether it is left out, a prepared project) for every operation of `act`."""
    prepare(folder := make(tmp_path / "counted"))
    for last in range(1, number_of_operations(lambda: act(folder)) + 1):
        for is_before in (True, False) if last % 3 == 0 else (False,):
            prepare(folder := make(tmp_path / f"{last}-{is_before}"))
            yield last, is_before, folder


def nothing(folder: Path) -> None:
    """Leave the project as it is made."""


def take_back(folder: Path) -> None:
    undo(folder, folder / "train.py")


def finish_by_undo(folder: Path, trees: tuple[Tree, Tree]) -> None:
    with suppress(WriteError):  # nothing was begun, or all was undone
        undo(folder, folder / "train.py")
    assert tree(folder) == trees[0]


def finish_by_write(folder: Path, trees: tuple[Tree, Tree]) -> None:
    if tree(folder) != trees[1]:
        recover(folder)
        assert tree(folder) in trees
    if tree(folder) != trees[1]:
        write(folder)
    assert tree(folder) == trees[1]


@pytest.mark.parametrize("finish", [finish_by_undo, finish_by_write])
@pytest.mark.parametrize(("prepare", "act"), [(nothing, write), (write, take_back)])
def test_killed_at_every_operation(
    tmp_path: Path, trees: tuple[Tree, Tree], prepare: Callable, act: Callable, finish: Callable
) -> None:
    half_done = 0
    for last, is_before, folder in points(tmp_path, prepare, act):
        with ending(last, kill, is_before), pytest.raises(Ended):
            act(folder)
        half_done += find_unfinished(folder) is not None
        finish(folder, trees)
    assert half_done > 20


def test_killed_again_while_it_recovers(tmp_path: Path, trees: tuple[Tree, Tree]) -> None:
    for last in range(1, number_of_operations(lambda: write(make(tmp_path / "counted"))) + 1, 3):
        for again in range(1, 30, 4):
            folder = make(tmp_path / f"{last}-{again}")
            with ending(last, kill), suppress(Ended):
                write(folder)
            with ending(again, kill), suppress(Ended):
                recover(folder)
            recover(folder)
            assert tree(folder) in trees and find_unfinished(folder) is None


@pytest.mark.parametrize("end", [interrupt, disk_full])
@pytest.mark.parametrize(("prepare", "act"), [(nothing, write), (write, take_back)])
def test_interrupted_at_every_operation(
    tmp_path: Path, trees: tuple[Tree, Tree], prepare: Callable, act: Callable, end: Callable
) -> None:
    for last, is_before, folder in points(tmp_path, prepare, act):
        with ending(last, end, is_before, is_final=False), suppress(KeyboardInterrupt, WriteError, OSError):
            act(folder)
        if act is write:
            assert tree(folder) in trees, (last, is_before)
        finish_by_undo(folder, trees)


def run(*arguments: str) -> int:
    with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
        return main(["convert", *arguments])


def killed(arguments: list[str], last: int) -> None:
    """Run the command in a process that kills itself at an operation."""
    child = os.fork()
    if child == 0:
        with ending(last, lambda: os.kill(os.getpid(), signal.SIGKILL)):
            os._exit(run(*arguments))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


def test_the_next_command_undoes_or_completes_an_interrupted_write(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    script.chmod(0o600)
    before = tree(tmp_path)
    number = number_of_operations(lambda: run(str(script), "--write"))
    complete = tree(tmp_path)
    assert run(str(script), "--undo") == 0 and tree(tmp_path) == before
    for last in (2, 8, number // 3, number // 2, number - 60, number - 10, number - 4):
        killed([str(script), "--write"], last)
        if find_unfinished(tmp_path) == "train.py":
            halfway = tree(tmp_path)
            assert main(["convert", str(script)]) == 2  # it changes nothing, so it cannot go on
            message = capsys.readouterr().err
            assert "a conversion of train.py was interrupted" in message and "--undo` restores the files" in message
            assert tree(tmp_path) == halfway
            assert run(str(script), "--undo") == 0
            assert tree(tmp_path) == before
            killed([str(script), "--write"], last)
        assert main(["convert", str(script), "--write"]) == 0 and "wrote " in capsys.readouterr().err
        assert tree(tmp_path) == complete
        assert run(str(script), "--undo") == 0
        assert tree(tmp_path) == before


def test_a_file_edited_after_the_interruption_is_kept(tmp_path: Path) -> None:
    folder = make(tmp_path)
    number = number_of_operations(lambda: write(folder))
    undo(folder, None)
    with ending(number - 8, kill), suppress(Ended):
        write(folder)
    assert find_unfinished(folder) == "train.py"
    (folder / "train.py").write_bytes(b"mine")
    with pytest.raises(WriteError, match=r"changed since the conversion: train.py .original: [0-9a-f]{64}."):
        recover(folder)
    assert (folder / "train.py").read_bytes() == b"mine"


def test_two_commands_at_once(tmp_path: Path) -> None:
    folder = make(tmp_path)
    with confined.Confined(folder) as other:
        other.lock()
        with pytest.raises(WriteError, match="another `retrofit convert` is writing"):
            write(folder)
    write(folder)
