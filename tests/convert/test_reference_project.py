"""The reference project before its retrofit: `convert` makes the listed changes, and it trains the same way after them.

UPDATE_GOLDEN=1 renews golden/reference_project.diff.
"""

from __future__ import annotations

import difflib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from retrofit.cli import main

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = Path(__file__).parent / "golden" / "reference_project.diff"
ARGUMENTS = ["--layers", "18", "--crop_size", "32", "--epochs", "1", "--batchsize", "20", "--workers", "0"]
SCRIPT = "tests/single_gpu/train.py"


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("converted")
    copy_to(folder)
    assert main(["convert", str(folder / SCRIPT), "--root", str(folder), "--write"]) == 0
    return folder


def copy_to(folder: Path) -> None:
    for name in ("tests/single_gpu", "segmentation", "configs"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))


def run(folder: Path, logdir: str, *launcher: str) -> dict:
    """Train in `folder` and return the content of the checkpoint."""
    environ = {**os.environ, "PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1", "RETROFIT_BATCH": "global"}
    command = [sys.executable, *launcher, SCRIPT, *ARGUMENTS, "--logdir", logdir]
    ended = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=900, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    (checkpoint,) = (folder / logdir).glob("*/epoch_1.pt")
    return torch.load(checkpoint, weights_only=True)


def test_one_process_trains_bit_for_bit_the_same(converted: Path, tmp_path: Path) -> None:
    copy_to(tmp_path)
    before, after = run(tmp_path, "log"), run(converted, "one")
    assert before["model"].keys() == after["model"].keys() and before["best_miou"] == after["best_miou"]
    assert all(torch.equal(before["model"][name], after["model"][name]) for name in before["model"])


def test_two_processes_train(converted: Path) -> None:
    content = run(converted, "two", "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2")
    assert not any(name.startswith("module.") for name in content["model"])
    assert len(list((converted / "two").iterdir())) == 1


def test_the_changes_are_listed(converted: Path) -> None:
    """Each file's hunks without their line numbers, so that the list changes when a line in it does."""
    lines = []
    for path in sorted([*(ROOT / "tests" / "single_gpu").glob("*.py"), *(ROOT / "segmentation").rglob("*.py")]):
        name = path.relative_to(ROOT)
        before, after = (folder.joinpath(name).read_text(encoding="utf-8").splitlines() for folder in (ROOT, converted))
        diff = difflib.unified_diff(before, after, str(name), f"converted/{name}", n=0, lineterm="")
        lines += [line if not line.startswith("@@") else "@@" for line in diff]
    text = "\n".join(lines) + "\n"
    if os.environ.get("UPDATE_GOLDEN"):
        GOLDEN.write_text(text, encoding="utf-8")
    assert text == GOLDEN.read_text(encoding="utf-8")


def test_the_converted_files_change_few_lines(converted: Path) -> None:
    added = 0
    for name in ("train.py", "utils.py"):
        before = (ROOT / "tests" / "single_gpu" / name).read_text(encoding="utf-8").splitlines()
        after = (converted / "tests" / "single_gpu" / name).read_text(encoding="utf-8").splitlines()
        added += sum(line.startswith("+ ") for line in difflib.ndiff(before, after))
    assert 10 <= added <= 25
