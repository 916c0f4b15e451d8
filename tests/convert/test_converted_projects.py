"""Projects in the shape of real ones, converted and run: the diff is the expected one, and the training is the same.

UPDATE_GOLDEN=1 writes the diffs in golden/ anew.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from convert.case import Case
from convert.feature_cases import FEATURE_CASES
from convert.golden_projects import GoldenProjects, copy_case
from convert.shape_cases import SHAPE_CASES
from verify.projects.launch import Launcher

from retrofit.convert.plan import is_converted, plan_conversion
from retrofit.rules.registry import find_all
from retrofit.training import read_project

HERE = Path(__file__).resolve().parent
CASES = [*SHAPE_CASES, *FEATURE_CASES]
CONVERTED = [case for case in CASES if not case.refused]
# The batch size counts all processes together, so that every number of them makes the same steps.
BATCH = {"RETROFIT_BATCH": "global"}
# What differs between two runs of one program: times, rates, the folders that are named after them.
VARYING = re.compile(r"[\d?]+:[\d?]\d?(:\d\d)?([.,]\d+)?|[\d.?]+ ?\w+/s|[\d.?]+s/\w+|\d{4}-\d\d-\d\d|\d+\.\d+ ?s\b")
BAR = re.compile(r"\x1b\[A|[^\r\n\]]*\[\d\d:\d\d[^\]\r\n]*\]")  # what is printed next may follow on its line
# What torch itself says on every rank: 2.8 of gloo, all of pinned memory without a GPU.
OF_TORCH = re.compile(r"\[Gloo\] Rank \d+ is connected to .*\n|.*UserWarning: 'pin_memory' argument .*\n.*\n")
NAMED_BY_TIME = {"timestamp_dir_csv_plots", "config_registry", "graph_and_reload"}
NAMED_BY_LOSS = {"toplevel_constants"}  # of which several processes make another one: they shuffle in another way


def files_in(folder: Path) -> dict[str, bytes]:
    """Return what a run has written: nothing of the conversion, no event files (their names hold the time)."""
    skip = {"__pycache__", "retrofit", ".retrofit", ".vscode"}
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
        and not skip & set(path.relative_to(folder).parts)
        and "tfevents" not in path.name
        and path.suffix not in (".py", ".sh")
        and path.name != "MULTI_GPU.md"
    }


def shown(text: str, folder: Path) -> list[str]:
    """Return what a run printed, without what differs from run to run: times, and when a bar was drawn."""
    lines = re.split(r"[\r\n]+", BAR.sub("\n", text.replace(str(folder), "")))
    return [VARYING.sub("*", line) for line in lines if line]


@pytest.mark.parametrize("example", CASES, ids=lambda example: example.name)
def test_the_diff_is_the_expected_one(example: Case, tmp_path: Path, golden_projects: GoldenProjects) -> None:
    if example.refused:
        refusals = plan_conversion(read_project(copy_case(example, tmp_path / "project") / example.entry)).refusals
        diff = "".join(f"{finding.place}: {finding.code} {finding.refusal}\n" for finding in refusals)
        assert refusals
    else:
        converted = golden_projects.converted(example)
        diff, project = converted.diff, read_project(converted.folder / example.entry)
        assert is_converted(project) and not plan_conversion(project).files
        assert [str(finding) for finding in find_all(project)] == []  # each rule sees that its hazard is gone
    golden = HERE / "golden" / f"{example.name}.diff"
    if os.environ.get("UPDATE_GOLDEN"):
        golden.write_text(diff, encoding="utf-8")
    assert diff == golden.read_text(encoding="utf-8")


@dataclass(frozen=True)
class OriginalRun:
    """What a project prints, line by line, and writes before its conversion, in one process."""

    lines: list[str]
    files: dict[str, bytes]


@pytest.fixture(scope="module")
def run_original(launcher: Launcher, tmp_path_factory: pytest.TempPathFactory) -> Callable[[Case], OriginalRun]:
    """Run a project as it was, once for all tests."""

    @cache
    def run(name: str) -> OriginalRun:
        (example,) = (example for example in CONVERTED if example.name == name)
        folder = copy_case(example, tmp_path_factory.mktemp("original") / "project")
        run = launcher.run(folder, example.entry, example.arguments, **BATCH)
        assert run["statuses"] == [0], run["outputs"][0]
        return OriginalRun(shown(run["outputs"][0], folder), files_in(folder))

    return lambda example: run(example.name)


def every_second(first: int) -> list[Any]:
    """Return the projects, every other of those that do not resume marked slow: the quick tests train each once."""
    return [
        pytest.param(example, id=example.name, marks=[pytest.mark.slow] * (number % 2 != first and not example.resume))
        for number, example in enumerate(CONVERTED)
    ]


@pytest.mark.parametrize("example", every_second(1))
def test_one_process_is_the_original_bit_for_bit(
    example: Case,
    tmp_path: Path,
    launcher: Launcher,
    run_original: Callable[[Case], OriginalRun],
    golden_projects: GoldenProjects,
) -> None:
    original = run_original(example)
    folder = shutil.copytree(golden_projects.converted(example).folder, tmp_path / "project")
    run = launcher.run(folder, example.entry, example.arguments, **BATCH)
    assert run["statuses"] == [0], run["outputs"][0]
    assert shown(run["outputs"][0], folder) == original.lines
    if example.name not in NAMED_BY_TIME:
        assert files_in(folder) == original.files


@pytest.mark.parametrize("world_size", [2, pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.parametrize("example", every_second(0))
def test_several_processes_train_and_one_writes(
    example: Case,
    world_size: int,
    tmp_path: Path,
    launcher: Launcher,
    run_original: Callable[[Case], OriginalRun],
    golden_projects: GoldenProjects,
) -> None:
    alone = run_original(example)
    folder = shutil.copytree(golden_projects.converted(example).folder, tmp_path / "several")
    run = launcher.run(folder, example.entry, example.arguments, world_size, **BATCH, SHOW_WRITES="1")
    assert run["statuses"] == [0] * world_size, "\n".join(run["outputs"])
    assert not any(OF_TORCH.sub("", output) for output in run["outputs"][1:]), run["outputs"][1]
    assert len(shown(run["outputs"][0], folder)) >= len(alone.lines) // 2
    if example.name not in NAMED_BY_TIME | NAMED_BY_LOSS:
        assert set(files_in(folder)) == set(alone.files)
    if example.resume:
        checkpoint = sorted(folder.glob(example.checkpoint))[-1]
        original = copy_case(example, tmp_path / "original")
        target = original / checkpoint.relative_to(folder)
        target.parent.mkdir(parents=True, exist_ok=True)
        for neighbour in checkpoint.parent.iterdir():
            if neighbour.is_file() and not (target.parent / neighbour.name).exists():
                shutil.copy(neighbour, target.parent)
        resume = [part.replace("{checkpoint}", str(target.relative_to(original))) for part in example.resume]
        resumed = launcher.run(original, example.entry, [*example.arguments, *resume], **BATCH)
        assert resumed["statuses"] == [0], resumed["outputs"][0]
