from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from segmentation.run_folder import LogFolderError, new_run_folder, require_log_folder, run_folders


def names(folders: list[Path]) -> list[str]:
    return [folder.name for folder in folders]


def test_numbers_count_up_and_the_newest_comes_first(tmp_path: Path) -> None:
    logdir = tmp_path / "deep" / "log"
    made = [new_run_folder(str(logdir), name) for name in ("zebra", "ape", "ape")]
    assert names(made) == ["001_zebra", "002_ape", "003_ape"]
    assert all(folder.is_dir() for folder in made)
    assert run_folders(str(logdir)) == made[::-1]


def test_no_log_folder_yet(tmp_path: Path) -> None:
    assert run_folders(str(tmp_path / "nowhere")) == []
    assert not (tmp_path / "nowhere").exists()


def test_numbers_continue_after_a_gap_and_past_three_digits(tmp_path: Path) -> None:
    for name in ("002_a", "999_b"):
        (tmp_path / name).mkdir()
    assert new_run_folder(str(tmp_path), "c").name == "1000_c"
    assert names(run_folders(str(tmp_path))) == ["1000_c", "999_b", "002_a"]  # by number, not by text


def test_foreign_entries_are_ignored(tmp_path: Path) -> None:
    for name in ("notes", "12_too_short", "x001_a", "007", "0a1_b", "tensorboard_900_x"):
        (tmp_path / name).mkdir()
    (tmp_path / "800_a_file.txt").write_text("not a run")
    assert run_folders(str(tmp_path)) == []
    assert new_run_folder(str(tmp_path), "run").name == "001_run"


def test_concurrent_runs_get_a_folder_each(tmp_path: Path) -> None:
    start = Barrier(8)

    def make(_: int) -> Path:
        start.wait()
        return new_run_folder(str(tmp_path), "run")

    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(make, range(8)))
    assert len(set(made)) == 8
    assert len(run_folders(str(tmp_path))) == 8


def test_a_folder_that_appears_meanwhile_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What two trainings see that start at the same moment: the number was free, and is not any more."""
    (tmp_path / "001_run").mkdir()
    (tmp_path / "001_run" / "checkpoint").write_text("of the other")
    monkeypatch.setattr("segmentation.run_folder.run_folders", lambda logdir: [])
    assert new_run_folder(str(tmp_path), "run").name == "002_run"
    assert (tmp_path / "001_run" / "checkpoint").read_text() == "of the other"


@pytest.mark.parametrize("kind", ["file", "dangling link"])
def test_an_invalid_log_folder_is_an_error_and_not_a_hang(tmp_path: Path, kind: str) -> None:
    logdir = tmp_path / "log"
    logdir.write_text("") if kind == "file" else logdir.symlink_to(tmp_path / "gone")
    with pytest.raises(LogFolderError, match="log is not a folder; choose another --logdir"):
        new_run_folder(str(logdir), "run")


@pytest.mark.parametrize(
    ("logdir", "message"),
    [
        ("file", "log folder {logdir} is not a folder; choose another --logdir"),
        ("file/below/it", "log folder {logdir} cannot be made: {folder}/file is not a folder; choose another --logdir"),
        ("link", "log folder {logdir} is not a folder; choose another --logdir"),
        ("/proc/self/log", r"cannot write to log folder {logdir}: /proc/self takes no file \(.*\); choose another"),
        ("new/below/it", ""),
        (".", ""),
    ],
)
def test_a_log_folder_that_cannot_be_used_is_known_before_the_training(
    tmp_path: Path, logdir: str, message: str
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "gone")
    before = sorted(tmp_path.rglob("*"))
    path = str(tmp_path / logdir)
    if message:
        with pytest.raises(LogFolderError, match=message.format(logdir=path, folder=tmp_path)):
            require_log_folder(path)
    else:
        require_log_folder(path)
    assert sorted(tmp_path.rglob("*")) == before
