"""The reference project before its retrofit: `convert` makes the listed changes, and it trains the same way after them.

UPDATE_GOLDEN=1 renews golden/reference_project.diff.
"""

from __future__ import annotations

import difflib
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from image_folder import folder_options, make_images
from verify.projects.launch import Launcher

from retrofit.cli import main

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = Path(__file__).parent / "golden" / "reference_project.diff"
ARGUMENTS = ["--layers", "18", "--crop_size", "32", "--epochs", "1", "--batchsize", "8", "--workers", "0"]
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


@pytest.fixture(scope="module")
def train(launcher: Launcher, tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path, str, int], dict]:
    """`train(folder, logdir, world_size)` trains in `folder` and returns the content of the checkpoint."""
    images = folder_options(make_images(tmp_path_factory.mktemp("data") / "images", 40))

    def run(folder: Path, logdir: str, world_size: int) -> dict:
        arguments = [*ARGUMENTS, *images, "--logdir", logdir]
        environment = {"PYTHONPATH": str(folder), "RETROFIT_BATCH": "global"}
        ended = launcher.run(folder, SCRIPT, arguments, world_size, **environment)
        assert ended["statuses"] == [0] * world_size, ended["outputs"]
        (checkpoint,) = (folder / logdir).glob("*/epoch_1.pt")
        return torch.load(checkpoint, weights_only=True)

    return run


def test_one_process_trains_bit_for_bit_the_same(
    converted: Path, tmp_path: Path, train: Callable[[Path, str, int], dict]
) -> None:
    copy_to(tmp_path)
    before, after = train(tmp_path, "log", 1), train(converted, "one", 1)
    assert before["model"].keys() == after["model"].keys() and before["best_miou"] == after["best_miou"]
    assert all(torch.equal(before["model"][name], after["model"][name]) for name in before["model"])


def test_two_processes_train(converted: Path, train: Callable[[Path, str, int], dict]) -> None:
    content = train(converted, "two", 2)
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
