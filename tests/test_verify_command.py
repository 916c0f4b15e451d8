"""The command `retrofit verify`: wrong usage says what to do, and what cannot be judged is not."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from verify_command import judge, run_verify

sys.path.insert(0, str(Path(__file__).parent / "verify"))

from bugs.catalogue import copy_project

from retrofit.cli import main
from retrofit.verify.runs.launches import divide_flag

pytestmark = pytest.mark.usefixtures("forked_python")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere.py"], "no script at nowhere.py; give a path from the current folder"),
        (["/etc/hostname"], "outside the current folder"),
        (["train.py", "-n", "1"], "-n must be at least 2, got 1"),
        (["train.py", "--accept", "nothing"], "--accept nothing: no such check; there are batchnorm"),
        (["train.py", "--steps", "-1"], "--steps must be a number of at least 0, got -1"),
        (["train.py", "--batch-flag", "batch"], "--batch-flag batch: no such flag among the script's arguments"),
        (["train.py", "--batch-flag", "batch", "--", "--batch", "7"], "--batch 7 cannot be shared by 2 processes"),
        (["train.py", "--keep", "."], "--keep . is not empty"),
    ],
)
def test_wrong_usage_says_what_to_do(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "train.py").write_text("")
    monkeypatch.chdir(tmp_path)
    assert main(["verify", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_one_epoch_is_too_few_to_resume_and_the_reason_is_printed(tmp_path: Path) -> None:
    copy_project("metric_learning", tmp_path)
    status, report = judge(tmp_path, ["--tolerance", "1e-6"], ["--epochs", "1"])
    (resume,) = [verdict for verdict in report["verdicts"] if verdict["check"] == "resume"]
    assert (status, resume["status"]) == (0, "NOT APPLICABLE")
    assert "no second training epoch to resume into" in resume["summary"]
    assert report["curves"]["tolerance"] == 1e-6


def test_a_script_that_trains_nothing_is_not_judged(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print('hello')\n")
    result = run_verify(tmp_path, "train.py", "--html", "")
    assert result.returncode != 0 and "PASS:" not in result.stdout


def test_a_script_that_fails_on_one_process_is_not_blamed_on_several(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("raise ValueError('broken before')\n")
    result = run_verify(tmp_path, "train.py", "--html", "")
    assert result.returncode == 1
    assert "RF001" in result.stdout and "broken before" in result.stdout


DRAWS_WITHOUT_A_LOADER = """
import torch
import retrofit.distributed as rd

rd.setup_distributed()
torch.manual_seed(0)
data, model = torch.randn(32, 4), torch.nn.Linear(4, 1)
model = rd.distribute_model(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(8):
    batch = data[torch.randint(32, (8,))]
    optimizer.zero_grad()
    model(batch).square().mean().backward()
    optimizer.step()
rd.cleanup_distributed()
"""


def test_a_training_without_recorded_samples_is_not_called_the_same(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(DRAWS_WITHOUT_A_LOADER)
    status, report = judge(tmp_path, [], [])
    assert (status, report["status"]) == (3, "INCOMPLETE")
    assert "samples" in report["not_compared"]
    assert report["conclusion"].startswith("INCOMPLETE: not compared: samples")
    assert "train the same model" not in report["conclusion"]


@pytest.mark.parametrize(
    ("arguments", "flag", "divided"),
    [
        (["--batch", "8", "--lr", "8"], "batch", ["--batch", "2", "--lr", "8"]),
        (["--batch=8"], "--batch", ["--batch=2"]),
        (["-b", "4", "b"], "b", ["-b", "1", "b"]),
        (["train.batch=8", "+lr=8"], "train.batch", ["train.batch=2", "+lr=8"]),
        (["+batch=8"], "batch", ["+batch=2"]),
    ],
)
def test_the_batch_flag_is_divided(arguments: list[str], flag: str, divided: list[str]) -> None:
    assert divide_flag(arguments, flag, 4) == divided
