"""`retrofit verify` from end to end: sound projects pass, and their folders are left alone."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from verify_command import judge

sys.path.insert(0, str(Path(__file__).parent / "verify"))

from bugs.catalogue import copy_project

pytestmark = pytest.mark.usefixtures("forked_python")

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


def files_in(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


SLOW = {"weighted sampler", "iterable", "two optimizers", "in-batch loss"}


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * (n in SLOW)) for n in SOUND])
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
