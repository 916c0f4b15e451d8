"""MULTI_GPU.md is short, and exact for its project."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from convert.case import Case
from convert.feature_cases import FEATURE_CASES
from convert.shape_cases import SHAPE_CASES

from retrofit.analysis.files.source import Place
from retrofit.analysis.files.start import Start
from retrofit.cli import main
from retrofit.convert.added.guide import MOST_LINES, guide
from retrofit.convert.added.script_facts import Option, ScriptFacts, script_facts
from retrofit.rules.finding import Finding
from retrofit.training import read_project
from retrofit.verify.source.listed_figures import listed_figures

pytestmark = pytest.mark.usefixtures("forked_python")

ROOT = Path(__file__).resolve().parents[2]
PROJECTS = ROOT / "tests" / "convert" / "projects"
CONVERTED = [case for case in (*SHAPE_CASES, *FEATURE_CASES) if not case.refused]
BATCH_FLAGS = {
    "accumulation": "--train_batch_size", "amp_clip_ema": "--bs", "gan_two_optimizers": "--batchSize",
    "kwargs_dict": "--batch-size", "loader_helper": "-b", "main_function": "--batch-size",
    "random_split_unseeded": "--bs",
    "tabs_and_crlf": "--batch", "trainer_class_in_module": "--batch_size", "trained_loss": None, "phase_dict": None,
}  # fmt: skip
PARSER = """\
import argparse
import torch
parser = argparse.ArgumentParser()
{options}
args = parser.parse_args()
"""


def page_of(project: Path) -> str:
    return (project / "MULTI_GPU.md").read_text(encoding="utf-8")


def command_in(page: str, purpose: str) -> str:
    (row,) = [line for line in page.splitlines() if line.startswith(f"| {purpose} |")]
    return row.split("`", 1)[1].rpartition("`")[0]


@pytest.mark.parametrize("case", CONVERTED, ids=lambda case: case.name)
def test_the_page_of_every_golden_project_is_short(case: Case, tmp_path: Path) -> None:
    project = tmp_path / "project"
    shutil.copytree(PROJECTS / case.name, project, ignore=shutil.ignore_patterns("__pycache__"))
    assert main(["convert", str(project / case.entry), "--write"]) == 0
    page = page_of(project)
    assert len(page.splitlines()) <= MOST_LINES
    assert page.startswith(f"# Training {case.entry} on several GPUs") and "Debug DDP Training" in page
    if case.name in BATCH_FLAGS:
        flag = BATCH_FLAGS[case.name]
        shown = re.search(r"\*\*Batch size.\*\* (\S+) counts", page)
        assert shown and shown[1] == (f"`{flag}`" if flag else "It")
        assert flag is None or f"{flag} " in command_in(page, "prove that it is the same training")
    texts = [path.read_text(errors="replace") for path in project.rglob("*.py") if path.name != "multigpu.py"]
    has_batchnorm = any(re.search("batch_?norm", text, re.IGNORECASE) for text in texts)
    assert ("**BatchNorm**" in page) >= has_batchnorm


@pytest.mark.slow  # test_verified.py has the same command
def test_the_verify_command_of_the_page_works(tmp_path: Path) -> None:
    project = tmp_path / "project"
    shutil.copytree(PROJECTS / "main_function", project, ignore=shutil.ignore_patterns("__pycache__"))
    assert main(["convert", str(project / "train.py"), "--write"]) == 0
    command = command_in(page_of(project), "prove that it is the same training")
    assert command == "retrofit verify train.py -- --batch-size 16 --epochs 2"
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    ended = subprocess.run(
        [sys.executable, "-m", *shlex.split(command)],
        cwd=project,
        env={**os.environ, "PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "2 processes train the same model as 1" in ended.stdout


@pytest.mark.parametrize(
    ("options", "arguments"),
    [
        ('"--epochs", type=int, default=90', ["--epochs", "2"]),
        ('"-e", "--num-epochs", type=int', ["--num-epochs", "2"]),
        ('"--n_epochs", dest="epochs"', ["--n_epochs", "2"]),
        ('"--bs", default=100', ["--bs", "104"]),
        ('"--batch_size", type=int, default="32"', ["--batch_size", "32"]),
        ('"-b", type=int', ["-b", "8"]),
        ('"data"', ["DATA"]),
        ('"data", nargs="?"', []),
        ('"--data-dir", required=True', ["--data-dir", "DATA_DIR"]),
        ('"--epochs", required=True', ["--epochs", "2"]),
        ('"--batch-size", type=int, required=True', ["--batch-size", "8"]),
        ('"epochs", type=int', ["2"]),
        ('"--lr", default=0.1', []),
        ("*FLAGS", []),
    ],
)
def test_what_the_verify_command_gives_the_script(options: str, arguments: list[str], tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(PARSER.format(options=f"parser.add_argument({options})"))
    assert script_facts(read_project(script)).verify_arguments == arguments


@pytest.mark.parametrize(
    ("line", "may"),
    [
        ("import numpy as np", False),
        ("from torchvision import datasets, transforms", False),
        ("import torchvision.transforms as T", False),
        ("import helpers", False),
        ("import torchvision", True),
        ("from torchvision.models import vgg16", True),
        ("import timm", True),
        ("layer = nn.LazyBatchNorm2d()", True),
        ("y = F.batch_norm(x, mean, variance)", True),
    ],
)
def test_the_paragraph_on_batchnorm_is_left_out_only_where_there_is_none(line: str, may: bool, tmp_path: Path) -> None:
    (tmp_path / "helpers.py").write_text("")
    (tmp_path / "train.py").write_text(f"import torch\n{line}\n")
    facts = script_facts(read_project(tmp_path / "train.py"))
    assert facts.may_have_batchnorm is may
    assert ("**BatchNorm**" in guide(Start(tmp_path / "train.py", tmp_path), True, facts=facts)) is may


def test_a_long_page_has_the_places_of_a_file_in_one_line(tmp_path: Path) -> None:
    places = [("train.py", number) for number in range(1, 21)] + [("logger.py", 7)]
    steps = "".join(f"  - `{path}:{number}`: counts\n" for path, number in places)
    page = guide(Start(tmp_path / "train.py", tmp_path), True, steps=steps)
    assert len(page.splitlines()) <= MOST_LINES
    assert "  - `train.py:1`: counts; `:2`: counts; " in page and "`:20`: counts\n  - `logger.py:7`: counts\n" in page


@pytest.mark.parametrize("number", [2, 40])
def test_verify_reads_the_listed_figures(number: int, tmp_path: Path) -> None:
    listed = [
        Finding("RF401", Place("lib/train.py", line, 1), "rank 0's share: log['`a`; `:7`: '], is printed", "")
        for line in range(11, 11 + number)
    ]
    steps = "- **Steps, not epochs.** Counted:\n  - `train.py:5`: counts\n"
    page = guide(Start(tmp_path / "train.py", tmp_path), True, listed=listed, steps=steps)
    (tmp_path / "MULTI_GPU.md").write_text(page, encoding="utf-8")
    assert listed_figures(tmp_path) == {f"lib/train.py:{line}" for line in range(11, 11 + number)}


def test_only_what_applies_is_there(tmp_path: Path) -> None:
    start = Start(tmp_path / "train.py", tmp_path)
    facts = ScriptFacts((Option(("--bs",), "bs"),), may_have_batchnorm=False, is_sharded=False)
    page = guide(start, True, facts=facts)
    for absent in ("BatchNorm", "Evaluation", "Figures", "Steps", "Not read", "The runtime"):
        assert f"**{absent}" not in page
    assert "ARGUMENTS are those of train.py: `--bs`.\n" in page
    full = guide(start, True, facts=ScriptFacts(full_evaluations=("its loop has an else",)))
    assert "in full on every process, because its loop has an else." in full
