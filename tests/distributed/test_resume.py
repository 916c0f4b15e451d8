"""Which checkpoint a run continues from."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from retrofit.distributed import get_rank
from retrofit.distributed.checkpoint.checkpoint_files import (
    checkpoints_in,
    find_checkpoint,
    is_newest_checkpoint,
    save_position,
)
from retrofit.distributed.checkpoint.full import read_checkpoint


def save(folder, epoch, samples, is_best=False):
    return save_position(Path(folder), epoch, samples, is_best=is_best, model=nn.Linear(2, 2), optimizer=None)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def damage(path):
    path.write_bytes(path.read_bytes()[:-50])


@pytest.fixture
def run(tmp_path):
    """A run's folder with a best checkpoint of epoch 1 and two newer ones."""
    folder = tmp_path / "run"
    save(folder, 1, 0, is_best=True)
    save(folder, 1, 40)
    save(folder, 2, 0)
    return folder


def test_the_last_two_and_the_best_are_kept(run):
    assert names(run) == ["best.pt", "checkpoint_0001_00000040.pt", "checkpoint_0002_00000000.pt"]
    assert read_checkpoint(run / "best.pt")["epoch"] == 1
    assert [path.name for path in checkpoints_in(run)] == ["checkpoint_0002_00000000.pt", "checkpoint_0001_00000040.pt"]


def test_the_furthest_checkpoint_is_first_also_beyond_four_digits(tmp_path):
    for name in ("checkpoint_9999_00000000.pt", "checkpoint_10000_00000000.pt", "checkpoint_2.pt", "other.pt"):
        (tmp_path / name).write_bytes(b"")
    found = [path.name for path in checkpoints_in(tmp_path)]
    assert found == ["checkpoint_10000_00000000.pt", "checkpoint_9999_00000000.pt"]
    assert checkpoints_in(tmp_path / "missing") == []


def test_is_newest_checkpoint(run):
    newest, older = checkpoints_in(run)
    assert is_newest_checkpoint(newest)
    assert not is_newest_checkpoint(older)
    assert not is_newest_checkpoint(run / "best.pt")


@pytest.mark.parametrize("how", ["auto", "folder"])
def test_training_continues_from_the_newest(run, how):
    found = find_checkpoint("auto" if how == "auto" else str(run), [run], to_train=True)
    assert found == run / "checkpoint_0002_00000000.pt"


@pytest.mark.parametrize("how", ["auto", "folder"])
def test_testing_uses_the_best(run, how):
    resume = "auto" if how == "auto" else str(run)
    assert find_checkpoint(resume, [run], to_train=False) == run / "best.pt"
    (run / "best.pt").unlink()
    assert find_checkpoint(resume, [run], to_train=False) == run / "checkpoint_0002_00000000.pt"


def test_an_explicit_file_is_used_as_given(run):
    older = run / "checkpoint_0001_00000040.pt"
    assert find_checkpoint(str(older), [], to_train=True) == older
    assert find_checkpoint(str(older), [], to_train=False) == older


def test_a_damaged_newest_checkpoint_is_renamed_and_reported(run, capsys):
    newest, older = checkpoints_in(run)
    damage(newest)
    assert find_checkpoint("auto", [run], to_train=True) == older
    assert f"notice: checkpoint {newest} is damaged" in capsys.readouterr().out
    assert newest.with_name(newest.name + ".damaged").is_file() and not newest.exists()
    assert is_newest_checkpoint(older)
    # The next save must drop nothing that is good.
    save(run, 2, 0)
    assert older.is_file()


def test_an_empty_newest_checkpoint_is_renamed(run):
    newest, older = checkpoints_in(run)
    newest.write_bytes(b"")
    assert find_checkpoint("auto", [run], to_train=True) == older


def test_all_damaged_is_an_error_and_nothing_is_renamed(run):
    for path in checkpoints_in(run):
        damage(path)
    before = names(run)
    with pytest.raises(ValueError, match=rf"no readable checkpoint in {run} \(2 damaged\); start without --resume"):
        find_checkpoint("auto", [run], to_train=True)
    assert names(run) == before


def test_nothing_to_continue_is_a_fresh_start_that_says_so(tmp_path, capsys, run):
    empty = tmp_path / "newer"
    empty.mkdir()
    assert find_checkpoint("auto", [], to_train=True) is None
    assert find_checkpoint("auto", [empty, run], to_train=True) is None, "an older run is another training"
    assert capsys.readouterr().out.count("notice: nothing to resume") == 2


def test_testing_uses_the_newest_run_with_a_checkpoint(tmp_path, run):
    empty = tmp_path / "newer"
    empty.mkdir()
    assert find_checkpoint("auto", [empty, run], to_train=False) == run / "best.pt"


@pytest.mark.parametrize("to_train", [True, False])
def test_a_missing_path_is_an_error(tmp_path, to_train):
    missing = str(tmp_path / "missing.pt")
    with pytest.raises(
        FileNotFoundError, match=f"no checkpoint at {missing}; give a checkpoint, a run's folder, or auto"
    ):
        find_checkpoint(missing, [], to_train=to_train)


def test_nothing_to_test_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError, match="train first, or give --resume PATH"):
        find_checkpoint("auto", [tmp_path], to_train=False)


def find(folder):
    """Ranks other than 0 look at a folder of their own, as on a node without the shared disk."""
    runs = [Path(folder)] if get_rank() == 0 else [Path(folder) / "elsewhere"]
    try:
        return str(find_checkpoint("auto", runs, to_train=True)), save(folder, 3, 0).name
    except (RuntimeError, ValueError) as error:
        return type(error).__name__, str(error)


def test_rank_0_decides_for_all(ranks, run):
    newest = str(checkpoints_in(run)[0])
    assert ranks(2).run(find, str(run)) == [(newest, "checkpoint_0003_00000000.pt")] * 2
    assert len(checkpoints_in(run)) == 2 and torch.is_tensor(read_checkpoint(checkpoints_in(run)[0])["model"]["bias"])


def test_an_error_of_rank_0_is_raised_on_all(ranks, run):
    for path in checkpoints_in(run):
        damage(path)
    (first, text), (second, other_text) = ranks(2).run(find, str(run))
    assert (first, second) == ("ValueError", "RuntimeError")
    assert "no readable checkpoint" in text and text in other_text
