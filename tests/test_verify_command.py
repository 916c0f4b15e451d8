"""`retrofit verify` from end to end: sound projects pass, seeded bugs are named, wrong usage says what to do.

docs/make_bug_table.py judges every seeded bug; here are one of each kind.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent / "verify"))

from bugs.catalogue import BUGS, copy_project, seed_bug

from retrofit.cli import main
from retrofit.verify.runs import divide_flag

ROOT = Path(__file__).resolve().parents[1]
SOUND = {
    "three processes, odd data set, accumulation, bf16": (
        "classifier",
        ["-n", "3", "--original", "train_single.py"],
        ["--accum_steps", "2", "--amp", "bf16", "--num_samples", "131", "--epochs", "2"],
    ),
    "weighted sampler": ("classifier", [], ["--sampler", "weighted", "--epochs", "2"]),
    "iterable": ("language_model", [], ["--iterable", "--epochs", "2"]),
    "two optimizers": ("gan", ["--original", "train_single.py"], ["--epochs", "2"]),
    "in-batch loss": ("metric_learning", ["--original", "train_single.py"], ["--epochs", "2"]),
}
SEEDED = ["01", "05", "08", "10", "19", "21b"]


def run_verify(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-m", "retrofit", "verify", *arguments]
    return subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=600)


def judge(folder: Path, options: list[str], arguments: list[str]) -> tuple[int, dict[str, Any]]:
    result = run_verify(folder, "train.py", "--json", "--html", "page.html", *options, "--", *arguments)
    assert result.stdout, result.stderr
    return result.returncode, json.loads(result.stdout)


def files_in(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


@pytest.mark.parametrize("name", SOUND)
def test_a_sound_project_passes_and_its_folder_is_left_alone(name: str, tmp_path: Path) -> None:
    project, options, arguments = SOUND[name]
    copy_project(project, tmp_path)
    before = files_in(tmp_path)
    status, report = judge(tmp_path, options, arguments)
    assert [(v["check"], v["summary"]) for v in report["verdicts"] if v["status"] == "FAIL"] == []
    assert status == 0 and report["status"] == "PASS"
    passed = {verdict["check"] for verdict in report["verdicts"] if verdict["status"] == "PASS"}
    assert {"shards", "loss", "gradients", "parameters", "ranks_agree", "lr", "resume", "checkpoint"} <= passed
    assert ("original" in passed) == ("--original" in options)
    after = files_in(tmp_path)
    page = after.pop("page.html")
    assert after == before and b"<svg" in page


@pytest.mark.parametrize("bug", [bug for bug in BUGS if bug.id in SEEDED], ids=lambda bug: f"{bug.id} {bug.title}")
def test_a_seeded_bug_is_named(bug: Any, tmp_path: Path) -> None:
    seed_bug(bug, tmp_path)
    status, report = judge(tmp_path, ["--hang-after", "5", *bug.verify_options], bug.arguments)
    failures = {verdict["check"]: verdict["cause"] for verdict in report["verdicts"] if verdict["status"] == "FAIL"}
    assert status == 1 and set(failures.values()) & set(bug.cause), failures


def test_an_accepted_finding_does_not_fail(tmp_path: Path) -> None:
    bug = next(bug for bug in BUGS if bug.id == "15")
    seed_bug(bug, tmp_path)
    status, report = judge(tmp_path, ["--accept", "batchnorm"], bug.arguments)
    assert status == 0
    assert [v["check"] for v in report["verdicts"] if v["status"] == "ACCEPTED"] == ["batchnorm"]


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


def test_one_epoch_is_too_few_to_resume_and_the_reason_is_told(tmp_path: Path) -> None:
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


@pytest.mark.parametrize(
    ("arguments", "flag", "divided"),
    [
        (["--batch", "8", "--lr", "8"], "batch", ["--batch", "2", "--lr", "8"]),
        (["--batch=8"], "--batch", ["--batch=2"]),
        (["-b", "4", "b"], "b", ["-b", "1", "b"]),
    ],
)
def test_the_batch_flag_is_divided(arguments: list[str], flag: str, divided: list[str]) -> None:
    assert divide_flag(arguments, flag, 4) == divided
